"""How many files a process may open, and for how many ranks that is enough."""

from __future__ import annotations

import resource

from pytest_ddp.system.own import os

PER_RANK = 10
"""Descriptors in a process that holds ranks, for each of them: its channel, files, streams and
captured output."""
BESIDE = 64
"""Descriptors for what tests open in the pytest process at the same time."""


def wanted_for(ranks: int, used: int = 0) -> int:
    """The limit that is needed to start so many ranks."""
    return used + ranks * PER_RANK + BESIDE


def make_room(ranks: int) -> str:
    """Raise the soft limit as far as more ranks need it; returns why that is impossible, or "".

    It is not raised to the hard limit at once: ``select`` fails for descriptors above 1023.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = wanted_for(ranks, len(os.listdir("/proc/self/fd")))
    if soft == resource.RLIM_INFINITY or wanted <= soft:
        return ""
    if hard != resource.RLIM_INFINITY and wanted > hard:
        return (
            f"{ranks} more ranks need {wanted} open files in the pytest process, whose hard limit "
            f"is {hard}: raise it by ulimit -Hn {wanted} before pytest starts (as root), or by "
            f"docker run --ulimit nofile={wanted}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return ""


def raise_to_hard_limit() -> None:
    """Raise the soft limit to the hard one, in a process of ours that runs no tests."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
