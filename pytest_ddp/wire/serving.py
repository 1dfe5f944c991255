"""Records about served processes: forks of a service in place of interpreters of ``spawn``.

A part of :mod:`pytest_ddp.wire.protocol`, which says how they travel.
"""

from __future__ import annotations

from dataclasses import dataclass

DESCRIPTORS = 11
"""What travels with :class:`Serve`: the process's channel, its three standard streams, the pipes of
its data and of its sentinel, the resource tracker's, and the four of ``RankFiles``."""
AT_ONCE = 8
"""Descriptors that travel with one :class:`Inherit` at most."""


# ---------------------------------------------------------------- pytest process -> service


@dataclass(frozen=True)
class Serve:
    """Make a process; the answer is :class:`Served`."""

    environment: dict[str, str]
    """All variables, as they are when the process is started."""
    umask: int


# ---------------------------------------------------------------- service -> pytest process


@dataclass(frozen=True)
class ServiceReady:
    """The service has imported what it will, and waits for orders."""

    problem: str | None
    """Why it must not be forked, in words; None if it may."""


@dataclass(frozen=True)
class Served:
    """The process exists, and the pytest process is its parent."""

    pid: int


# ---------------------------------------------------------------- pytest process -> its process


@dataclass(frozen=True)
class Inherit:
    """Descriptors that what the process unpickles refers to, in order; they travel along."""

    numbers: tuple[int, ...]
    """What they are in the pytest process."""
    last: bool


# ---------------------------------------------------------------- its process -> pytest process


@dataclass(frozen=True)
class Joined:
    """The process has made a process group: from now on it answers probes."""


@dataclass(frozen=True)
class Place:
    """Its place in the default process group; said before each answer to a probe."""

    rank: int
    """-1 for one that has none now."""
    world_size: int
    released: bool = False
    """Its function has returned, and the process only waits until the others' have."""


RETURNED = "returned"
"""The phase of a process whose target has returned or raised; ``os._exit`` leaves another one."""
