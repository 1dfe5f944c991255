"""What the pytest process knows of served processes, which one of its services watches."""

from __future__ import annotations

import contextlib
import enum
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from pytest_ddp.extensions.adopt.ranks.served_messages import Proved, RankKnown, Watch
from pytest_ddp.outcome.outcome import Hang
from pytest_ddp.protocol.channel import Channel, ChannelError, restored
from pytest_ddp.protocol.messages import Message
from pytest_ddp.protocol.rank_status import RankStatus
from pytest_ddp.system.stdlib import os, threading

if TYPE_CHECKING:
    from pytest_ddp.extensions.adopt.popen import ServedPopen
    from pytest_ddp.extensions.adopt.spawn_server import SpawnServer


class ExitDeadline(enum.IntEnum):
    """The phase at whose end the exit is judged; later if the process still runs."""

    NOW = 0
    """The phase that started the process."""
    TEARDOWN = 1
    """The test's teardown: a function-scoped fixture started the process."""
    END = 2
    """The session's last teardown: a fixture of a wider scope started the process."""


class Watched:
    """One served process, from its start until the test that started it has been judged."""

    def __init__(
        self, popen: ServedPopen, nodeid: str, deadline: ExitDeadline, *, judged: bool
    ) -> None:
        self.popen = popen
        self.label = popen.name
        """The name of the process in texts."""
        self.raised = ""
        """Type and message of the exception that torch keeps of the process; empty for none."""
        self.nodeid = nodeid
        """The node id of the test that started the process."""
        self.due = deadline
        self.is_judged = judged
        """Whether the test is responsible for the exit of the process; for a pool's workers, the
        pool is."""
        self.rank = -1
        self.status: RankStatus | None = None
        """The last answer of the process, if it is part of a hang."""
        self.hang: Hang | None = None
        """The hang for which the process was killed."""


class Watcher:
    """Has processes watched, and reads what is reported of them."""

    def __init__(self, timeout: float) -> None:
        """
        Args:
            timeout: seconds; a wait whose own timeout is shorter is no deadlock.
        """
        self._timeout = timeout
        self._lock = threading.Lock()
        self._processes: WeakValueDictionary[int, Watched] = WeakValueDictionary()
        self._channel: Channel | None = None

    def add(self, watched: Watched, channel: Channel, servers: list[SpawnServer]) -> None:
        """Have one more process watched, by the service that watches the others."""
        pid = watched.popen.pid
        with self._lock:
            self._read()
            if self._channel is None:
                self._channel = self._begun(servers)
            self._processes[pid] = watched
            if self._channel is not None:
                pidfd = os.pidfd_open(pid)
                descriptors = channel.fileno(), pidfd, watched.popen.files.faults
                self._channel.send(Watch(pid), descriptors)
                os.close(pidfd)

    def read_reports(self) -> None:
        """Note what was reported: reports on a process are sent before it is ended."""
        with self._lock:
            self._read()

    def _begun(self, servers: list[SpawnServer]) -> Channel | None:
        """A channel to the first living service."""
        for service in servers:
            ours, theirs = Channel.pair()
            with theirs:
                if service.watch_by(theirs, self._timeout):
                    return ours
            ours.close()
        return None

    def _read(self) -> None:
        # A test may have closed the descriptor, whose number may be that of a file of its own.
        if self._channel is None or not self._channel.is_there():
            return
        messages: list[tuple[Message, list[int]]] = []
        with contextlib.suppress(ChannelError):
            messages = self._channel.receive_available()
        for message, _ in messages:
            self._take(message)
        if self._channel.at_end:  # The service has died.
            self._channel.close()
            self._channel = None

    def _take(self, message: Message) -> None:
        match message:
            case RankKnown():
                if (process := self._processes.get(message.pid)) is not None:
                    process.rank = message.rank
            case Proved():
                hang = restored(Hang, message.hang)
                for pid, answer in zip(message.pids, message.answers, strict=True):
                    if (process := self._processes.get(pid)) is not None:
                        process.hang, process.status = hang, answer
