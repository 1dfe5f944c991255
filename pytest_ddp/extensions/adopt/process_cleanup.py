"""Watches, explains and judges served processes after their start."""

from __future__ import annotations

from typing import Any

from pytest_ddp.extensions.adopt.exit_deadline import ExitDeadline
from pytest_ddp.extensions.adopt.joins import Joins
from pytest_ddp.extensions.adopt.judging import Judge
from pytest_ddp.extensions.adopt.popen import ServedPopen
from pytest_ddp.extensions.adopt.spawn_server import SpawnServer
from pytest_ddp.extensions.adopt.watching import Watched, Watcher
from pytest_ddp.protocol.channel import Channel

_WITH_OWNERS = ("concurrent.", "multiprocessing.")
"""Modules of targets whose processes a pool or a manager cleans up."""


class ProcessCleanup:
    """Watcher, joins and judge of one session."""

    def __init__(self, timeout: float, docs_url: str, *, checks_exits: bool) -> None:
        self._watcher = Watcher(timeout)
        self.judge = Judge(self._watcher.hear, checks_exits=checks_exits, docs_url=docs_url)
        self.joins = Joins(self.judge, checks_exits=checks_exits)

    def take(
        self,
        popen: ServedPopen,
        channel: Channel,
        servers: list[SpawnServer],
        process: Any,
        nodeid: str,
        deadline: ExitDeadline,
    ) -> None:
        """Take care of a process that has just been started by this test.

        Args:
            popen: the process.
            channel: to it.
            servers: one of which watches it.
            process: its ``multiprocessing.Process``.
            nodeid: the test.
            deadline: when its exit is judged.
        """
        module = getattr(getattr(process, "_target", None), "__module__", None) or ""
        judged = not module.startswith(_WITH_OWNERS)
        watched = Watched(popen, nodeid, deadline, judged=judged)
        self.judge.add(watched)
        self.joins.install()
        self._watcher.add(watched, channel, servers)
