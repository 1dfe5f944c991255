"""Watches, in a service, whether the served processes of a process group can still end.

It runs in the service and not in a thread of the pytest process: tests are checked for threads that
they leave, and a fork of a process with threads is not safe.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Set
from operator import attrgetter
from typing import Any

from pytest_ddp.deadlock.prober import Prober
from pytest_ddp.extensions.adopt.ranks.served_messages import (
    BeginWatch,
    Joined,
    ProcessPlace,
    Proved,
    RankKnown,
    Watch,
)
from pytest_ddp.outcome.outcome import Hang
from pytest_ddp.protocol.channel import Channel, ChannelError
from pytest_ddp.protocol.messages import Message
from pytest_ddp.protocol.rank_status import Probe, RankStatus
from pytest_ddp.system.stdlib import os, select, signal, socket, time

_STACK_LIMIT = 0.5
"""Seconds for a process to write its stacks; it needs about a millisecond."""
_A_MOMENT = 0.01


class ProbedProcess:
    """One served process, from its start to its end."""

    def __init__(self, pid: int, channel: Channel, pidfd: int, stacks: int) -> None:
        self.pid = pid
        self.channel = channel
        self.gone = False
        self.joined = False
        self.rank = -1
        self.released = False
        """Whether the function of the process has returned: it issues no further collectives."""
        self.status: RankStatus | None = None
        """The last answer of the process to a probe; None if there was none."""
        self._pidfd = pidfd
        self._stacks = stacks

    @property
    def number(self) -> int:
        """The rank of the process; if it has none now, a unique negative number."""
        return self.rank if self.rank >= 0 else -self.pid

    @property
    def has_written_stacks(self) -> bool:
        return os.fstat(self._stacks).st_size > 0

    def fileno(self) -> int:
        """A descriptor that is readable when the process has ended."""
        return self._pidfd

    def send(self, message: Probe) -> None:
        self.channel.send(message)

    def signal(self, number: int) -> None:
        """Send a signal to the process, never to another one that has reused its pid."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def close(self) -> None:
        self.channel.close()
        os.close(self._pidfd)
        os.close(self._stacks)


class ProcessWatch:
    """The watch over all served processes of a pytest process, also those of other services."""

    def __init__(self, begin: BeginWatch, ours: int) -> None:
        """
        Args:
            begin: the request of the pytest process.
            ours: the socket for :class:`Watch` and for reports.
        """
        self._timeout = begin.timeout
        self._pytest = _channel(ours)
        self._processes: list[ProbedProcess] = []
        self._prober: Prober | None = None

    def sources(self) -> Iterator[int]:
        """Descriptors of which one becomes readable when there is something to do."""
        if not self._pytest.at_end:
            yield self._pytest.fileno()
        for process in self._processes:
            yield process.fileno()
            if not process.channel.at_end:
                yield process.channel.fileno()

    def due_in(self) -> float | None:
        """Seconds until there is something to do in any case; None if there is nothing."""
        return None if self._prober is None else self._prober.due_in()

    def close(self) -> None:
        """Close all descriptors of the watch: a fork of the service must not have them."""
        self._pytest.close()
        for process in self._processes:
            process.close()

    def step(self, ready: Set[int]) -> None:
        """Do what is to be done now.

        Args:
            ready: the descriptors of :meth:`sources` that are readable.
        """
        self._take_requests()
        for process in self._processes:
            process.gone = process.fileno() in ready
            self._receive(process)
        self._forget_ended()
        self._probe([process for process in self._processes if process.joined])

    def _take_requests(self) -> None:
        for request, (channel, pidfd, stacks) in _available(self._pytest):
            assert isinstance(request, Watch), request
            process = ProbedProcess(request.pid, _channel(channel), pidfd, stacks)
            self._processes.append(process)

    def _receive(self, process: ProbedProcess) -> None:
        for message, _ in _available(process.channel):
            self._take(process, message)
        if process.channel.at_end and process.joined:
            # It has a group still, but does not answer any more.
            process.joined, self._prober = False, None

    def _take(self, process: ProbedProcess, message: Message) -> None:
        match message:
            case Joined():
                process.joined, self._prober = True, None
            case ProcessPlace():
                process.released = message.released
                if message.rank != process.rank:
                    process.rank, self._prober = message.rank, None
                    self._pytest.send(RankKnown(process.pid, message.rank))
            case RankStatus():
                process.status = message
                if self._prober is not None and process.joined:
                    ended = process.released and message.alone
                    hang = self._prober.take(process.number, message, ended)
                    if hang is not None:
                        self._end(hang)

    def _forget_ended(self) -> None:
        for process in self._processes:
            if process.gone:
                process.close()
                self._prober = None
        self._processes = [process for process in self._processes if not process.gone]

    def _probe(self, joined: list[ProbedProcess]) -> None:
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
        pids = tuple(process.pid for process in stuck)
        answers = tuple(process.status for process in stuck)
        # First, so that the pytest process has the reason when it sees the end of one of them.
        self._pytest.send(Proved(dataclasses.asdict(hang), pids, answers))
        for process in stuck:
            process.signal(signal.SIGUSR1)
        _wait_until(lambda: all(process.has_written_stacks for process in stuck))
        for process in stuck:
            process.signal(signal.SIGKILL)


def _channel(descriptor: int) -> Channel:
    sock = socket.socket(fileno=descriptor)
    sock.setblocking(False)
    return Channel(sock)


def _available(channel: Channel) -> Iterable[tuple[Message, list[int]]]:
    """What has arrived; nothing, and the end of the channel, after something that is no message."""
    try:
        return channel.receive_available()
    except (ChannelError, OSError, ValueError):
        # The test wrote into the channel, so further messages cannot be trusted.
        channel.at_end = True
        return ()


def _wait_until(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _STACK_LIMIT
    while not is_done() and time.monotonic() < deadline:
        select.select([], [], [], _A_MOMENT)
