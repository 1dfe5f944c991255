"""Requests nodes from the autoscaler of a Ray cluster, and waits for them."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pytest_ddp.system.stdlib import shutil, signal, subprocess, time

SIGN_LIMIT = 30.0
"""Seconds without a sign of a new node: an autoscaler looks at requests every 5 s."""
_LIMIT = 900.0
"""Seconds in all: a cloud's nodes take minutes; where it has none, Ray tries without end."""
_LOOK = 1.0
_RAREST = 5.0
"""Seconds between two calls of ``ray status`` at most: each imports Ray, a second of a CPU."""
_NONE = "(no pending nodes)"
_STATUS_LIMIT = 20.0
"""Seconds for ``ray status``, which imports Ray."""


class ScalerWait:
    """A request for nodes, until they are there or it is given up."""

    def __init__(self, nodes: int, with_ours: bool, show: Callable[[str], object]) -> None:
        """Request the nodes.

        Args:
            nodes: how many the cluster must have.
            with_ours: whether Ray has a CPU on the node of pytest.
            show: shows on pytest's terminal what is waited for.
        """
        from ray.util.placement_group import placement_group  # noqa: PLC0415 - takes seconds

        self._nodes, self._show = nodes, show
        # A group that waits is what an autoscaler acts on. Not `request_resources`, which asks
        # for CPUs: one large node would do.
        bundles = [{"CPU": 1.0} for _ in range(nodes if with_ours else nodes - 1)]
        self._group = placement_group(bundles, "STRICT_SPREAD")

    def until(self, there: Callable[[], list[dict[str, Any]]]) -> str:
        """Wait while nodes join or start; why no more do, or empty if all are there.

        Args:
            there: returns Ray's list of the nodes that there are now.
        """
        try:
            return self._until(there)
        finally:
            from ray.util.placement_group import remove_placement_group  # noqa: PLC0415

            # The agents' own group needs these CPUs. Nodes without work stay for minutes.
            remove_placement_group(self._group)

    def _until(self, there: Callable[[], list[dict[str, Any]]]) -> str:
        began = hoped = asks = time.monotonic()
        most = len(there())
        pause, pending = _LOOK, ""
        self._say(most, "more are requested from its autoscaler")
        while (found := len(known := there())) < self._nodes:
            if time.monotonic() >= asks:
                pending = coming(status(), known)
                asks, pause = time.monotonic() + pause, min(pause + _LOOK, _RAREST)
            now = time.monotonic()
            if pending or found > most:
                most, hoped = max(most, found), now
                self._say(found, pending or "its autoscaler adds more")
            if now > hoped + SIGN_LIMIT:
                return f"no other was on its way within {SIGN_LIMIT:.0f} s"
            if now > began + _LIMIT:
                return f"not all came within {_LIMIT:.0f} s ({pending})"
            signal.sigtimedwait([], _LOOK)
        return ""

    def _say(self, found: int, more: str) -> None:
        self._show(f"{found} of {self._nodes} machines are in the Ray cluster; {more}")


def status() -> str:
    """The output of ``ray status``: no public call returns what an autoscaler is about to do."""
    beside = Path(sys.executable).with_name("ray")
    ray = str(beside) if beside.exists() else shutil.which("ray")
    if ray is None:
        return ""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = [ray, "status"]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=_STATUS_LIMIT, stdin=subprocess.DEVNULL
        ).stdout
    return ""


def coming(said: str, known: Iterable[dict[str, Any]]) -> str:
    """The nodes that an autoscaler is starting, in its words; empty if there are none.

    Args:
        said: the output of ``ray status``.
        known: nodes that are there, which the output may still list.
    """
    _, _, rest = said.partition("\nPending:\n")
    rows = itertools.takewhile(lambda line: line.startswith(" "), rest.splitlines())
    names = {node[key] for node in known for key in ("NodeManagerAddress", "NodeID")}
    found = [row.strip() for row in rows if row.strip().partition(":")[0] not in names]
    return "" if found == [_NONE] else ", ".join(found)
