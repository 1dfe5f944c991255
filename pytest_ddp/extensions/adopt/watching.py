"""Watches from a thread whether the served processes of a process group can still end.

It is a thread because the main thread may be blocked, in a ``join`` or on a queue.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pytest_ddp.deadlock.prober import Prober
from pytest_ddp.extensions.adopt.exit_deadline import ExitDeadline
from pytest_ddp.extensions.adopt.ranks.served_messages import Joined, ProcessPlace
from pytest_ddp.outcome.outcome import Hang
from pytest_ddp.protocol.channel import Channel, ChannelError
from pytest_ddp.protocol.messages import Message
from pytest_ddp.protocol.rank_status import Probe, RankStatus
from pytest_ddp.system.stdlib import os, select, signal, socket, threading, time

if TYPE_CHECKING:
    from pytest_ddp.extensions.adopt.popen import ServedPopen

_STACK_LIMIT = 0.5
"""Seconds for a process to write its stacks; it needs about a millisecond."""
_A_MOMENT = 0.01


class Watched:
    """One served process, from its start until the test that started it has been judged."""

    def __init__(
        self, popen: ServedPopen, channel: Channel, nodeid: str, due: ExitDeadline, *, judged: bool
    ) -> None:
        self.popen = popen
        self.label = popen.name
        """Its name in texts."""
        self.raised = ""
        """Type and message of the exception that torch keeps of it; empty for none."""
        self.nodeid = nodeid
        """The test that started it."""
        self.due = due
        self.is_judged = judged
        """Whether the test is responsible for its exit; for the workers of a pool, the pool is."""
        self.channel = channel
        self.gone = False
        self.joined = False
        self.rank = -1
        self.released = False
        """Whether its function has returned: it issues no further collectives."""
        self.status: RankStatus | None = None
        """Its last answer."""
        self.hang: Hang | None = None
        """The hang for which the watcher ended it."""
        self._pidfd = os.pidfd_open(popen.pid)

    @property
    def number(self) -> int:
        """Its rank; if it has none now, a unique negative number."""
        return self.rank if self.rank >= 0 else -self.popen.pid

    def send(self, message: Probe) -> None:
        self.channel.send(message)

    def fileno(self) -> int:
        """Readable when the process has ended."""
        return self._pidfd

    def signal(self, number: int) -> None:
        """Send a signal to it, never to another process that has reused its pid."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def close(self) -> None:
        self.channel.close()
        os.close(self._pidfd)


class Watcher:
    """The thread, which runs as long as there are served processes."""

    def __init__(self, timeout: float) -> None:
        """
        Args:
            timeout: seconds; a wait whose own timeout is shorter is no deadlock.
        """
        self._timeout = timeout
        self._lock = threading.Lock()
        self._processes: list[Watched] = []
        self._thread: threading.Thread | None = None
        self._prober: Prober | None = None
        self._wake, self._woken = socket.socketpair()

    def add(self, process: Watched) -> None:
        """Watch one more process."""
        with self._lock:
            self._processes.append(process)
            if self._thread is None:
                name = "pytest-ddp watch"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
        self._wake.send(b"x")

    def _run(self) -> None:
        while processes := self._living():
            self._wait(processes)
            for process in processes:
                self._receive(process)
            self._probe([process for process in processes if process.joined])

    def _living(self) -> list[Watched]:
        with self._lock:
            for process in self._processes:
                if process.gone:
                    process.close()
                    self._prober = None
            self._processes = [process for process in self._processes if not process.gone]
            if not self._processes:
                self._thread = None
            return list(self._processes)

    def _wait(self, processes: Iterable[Watched]) -> None:
        poll = select.poll()
        sources: list[Any] = [self._woken, *processes]
        sources += [process.channel for process in processes if not process.channel.at_end]
        for source in sources:
            poll.register(source, select.POLLIN)
        due = None if self._prober is None else 1000 * self._prober.due_in()
        ready = {descriptor for descriptor, _ in poll.poll(due)}
        if self._woken.fileno() in ready:
            self._woken.recv(1024)
        for process in processes:
            process.gone = process.fileno() in ready

    def _receive(self, process: Watched) -> None:
        messages: Iterable[tuple[Message, list[int]]] = ()
        try:
            messages = process.channel.receive_available()
        except (ChannelError, OSError, ValueError):
            # The test wrote into the channel, so further messages cannot be trusted.
            process.channel.at_end, process.joined = True, False
        for message, _ in messages:
            self._take(process, message)

    def _take(self, process: Watched, message: Message) -> None:
        match message:
            case Joined():
                process.joined, self._prober = True, None
            case ProcessPlace():
                process.released = message.released
                if message.rank != process.rank:
                    process.rank, self._prober = message.rank, None
            case RankStatus():
                process.status = message
                if self._prober is not None and process.joined:
                    ended = process.released and message.alone
                    hang = self._prober.take(process.number, message, ended)
                    if hang is not None:
                        self._end(hang)

    def _probe(self, joined: list[Watched]) -> None:
        ranks = [process.rank for process in joined if process.rank >= 0]
        if not joined or len(set(ranks)) < len(ranks):
            # With two worlds at a time, a process cannot be assigned to one of them.
            self._prober = None
        elif self._prober is None:
            processes: Any = joined
            deadline = time.monotonic() + self._timeout
            self._prober = Prober(0, processes, deadline, attrgetter("number"))
        else:
            self._prober.probe()

    def _end(self, hang: Hang) -> None:
        """Kill the processes that could never end, after they have written their stacks."""
        self._prober = None
        proved = {row.rank for row in hang.table if row.rank >= 0}
        stuck = [process for process in self._processes if process.rank in proved]
        for process in stuck:
            process.hang = hang
            process.signal(signal.SIGUSR1)
        _wait_until(lambda: all(process.popen.files.stacks() for process in stuck))
        for process in stuck:
            process.signal(signal.SIGKILL)


def _wait_until(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _STACK_LIMIT
    while not is_done() and time.monotonic() < deadline:
        select.select([], [], [], _A_MOMENT)
