"""A rank's end of its channel to the controller."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol

from pytest_ddp.fixture import DdpError
from pytest_ddp.protocol.channel import Channel, ChannelError
from pytest_ddp.protocol.messages import (
    EXIT_LINK_LOST,
    EndAnnounced,
    EnterHang,
    Exchange,
    ExchangeReply,
    Finish,
    FixtureOperation,
    FromRank,
    Go,
    LiftTimeouts,
    Message,
    RequestTerminal,
    ReturnTerminal,
    RunTest,
    Save,
    Saved,
    TerminalReply,
    Warned,
)
from pytest_ddp.protocol.rank_status import Probe, RequestCalls
from pytest_ddp.protocol.status_page import SEEN, StatusPage, cut_off
from pytest_ddp.rank.exits import crash_stacks
from pytest_ddp.rank.groups.env_rendezvous import EnvRendezvous
from pytest_ddp.rank.groups.side_channel import SideChannel
from pytest_ddp.rank.operations.stream import Operations
from pytest_ddp.rank.status.status_reporter import StatusReporter
from pytest_ddp.system.stdlib import os, queue, select, signal, threading


class DebuggerLink(Protocol):
    """What the controller may request from a rank's debugger while the main thread is busy."""

    def lift_timeouts(self) -> None: ...
    def enter_hang(self) -> None: ...


class Link:
    """Reads on a thread of its own, so that the end of the controller is noticed at once."""

    def __init__(
        self,
        channel: Channel,
        side_channel: SideChannel,
        status_reporter: StatusReporter,
        page: StatusPage,
        rendezvous: EnvRendezvous,
        operations: Operations,
    ) -> None:
        self._operations = operations
        self._channel = channel
        self._rendezvous = rendezvous
        self._side_channel = side_channel
        self._status_reporter = status_reporter
        self._page = page
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._orders: queue.SimpleQueue[tuple[RunTest | Finish, list[int]]] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[ExchangeReply] = queue.SimpleQueue()
        self._go: queue.SimpleQueue[Go] = queue.SimpleQueue()
        self._terminal: queue.SimpleQueue[tuple[str | None, list[int]]] = queue.SimpleQueue()
        self.debugger: DebuggerLink | None = None
        self.test = -1
        """Number of the current test."""
        self.save: Callable[[], None] = lambda: None
        """Saves the rank's coverage data; called at each probe, as a hanging rank may be killed."""
        threading.Thread(target=self._read, name="pytest-ddp link", daemon=True).start()

    def next_request(self) -> tuple[RunTest | Finish, list[int]]:
        """Wait for the controller's next order."""
        return self._orders.get()

    def send(
        self, message: FromRank, descriptors: tuple[int, ...] = (), *, more: bool = False
    ) -> None:
        """Send a message; with ``more``, together with the next one.

        In a process that is not the rank itself, this exits.
        """
        self._check_is_rank()
        try:
            with self._lock:
                self._channel.send(message, descriptors, more=more)
        except OSError:
            crash_stacks.exit_now(EXIT_LINK_LOST)

    def warn(self, text: str, file: str = __file__, line: int = 1) -> None:
        """Make the controller issue a warning that is not the test's own."""
        self.send(Warned("pytest_ddp:DdpWarning", text, file, line, "runtest", ""))

    def announce_end(self, codes: tuple[int, ...], others: bool) -> None:
        """Announce how the test will end its process; see :class:`EndAnnounced`."""
        self.send(EndAnnounced(self.test, codes, others))

    def check(self) -> None:
        """Exit, if this process cannot send anything, or must not."""
        self._check_is_rank()
        if not self._channel.is_there():
            crash_stacks.exit_now(EXIT_LINK_LOST)

    def _check_is_rank(self) -> None:
        if os.getpid() != self._pid:
            # A child that the test forked returned into pytest's protocol. Its reports would be
            # taken for the rank's.
            crash_stacks.exit_now(1)

    def wait_for_go(self, test: int) -> Go:
        """Wait until every rank of the test is ready to begin."""
        # A Go for an earlier test, which was given up, may still be in the queue.
        while (go := self._go.get()).test != test:
            pass
        return go

    def exchange(
        self, operation: FixtureOperation, source: int | None, payload: str
    ) -> tuple[str, ...]:
        """Take part in a side-channel operation.

        Raises:
            DdpError: the operation can never complete.
        """
        with self._operations.exchange(operation):
            number, replies = self._side_channel.arrive(operation), self._replies
            self.send(Exchange(self.test, number, operation, source, payload))
            # A reply to an operation that this test gave up may still be in the queue.
            while (reply := replies.get()).number != number:
                pass
            if reply.error is not None:
                raise DdpError(reply.error)
        return reply.payloads

    def want_terminal(self) -> tuple[str | None, list[int]]:
        """Wait for the terminal; returns a refusal, or its descriptors."""
        self.send(RequestTerminal(self.test))
        return self._terminal.get()

    def leave_terminal(self, steps: bool, quits: bool) -> None:
        """Return the terminal; see :class:`ReturnTerminal`."""
        self.send(ReturnTerminal(self.test, steps, quits))

    def _read(self) -> None:
        # Ends with the channel.
        while (received := self._receive()) is not None:
            message, descriptors = received
            match message:
                case ExchangeReply():
                    self._side_channel.leave(message.number)
                    self._replies.put(message)
                case Probe() | RequestCalls():
                    self._answer(message)
                    self.save()
                case Save():
                    self.save()
                    self.send(Saved(message.test))
                case Go():
                    self._go.put(message)
                case TerminalReply():
                    self._terminal.put((message.refusal, descriptors))
                case LiftTimeouts() | EnterHang():
                    self._debug(message)
                case RunTest() | Finish():
                    # The last test may have given up an operation: its reply, which has come by
                    # now, and a thread that still waits for it keep the old queue. Numbers begin
                    # anew with each test.
                    self._replies = queue.SimpleQueue()
                    self._orders.put((message, descriptors))
                case _:
                    raise AssertionError(f"{message} is not for a rank that runs")
        # Either the test has closed the channel or the controller is gone. The page reports the
        # former, for which it needs no descriptor. DataLoader workers must end with the rank.
        self._page.write(SEEN, cut_off())
        os.killpg(0, signal.SIGKILL)

    def _serve_until_readable(self) -> None:
        """Serve the store of the test if somebody connects to its port before a message comes.

        The socket of a new port is found after the Go that follows each order with one.
        """
        while (listening := self._rendezvous.listening) is not None:
            poll = select.poll()
            for source in (self._channel.fileno(), listening):
                poll.register(source, select.POLLIN)
            ready = {source for source, _ in poll.poll()}
            # The main thread may have replaced it, and then closed it.
            if listening in ready and listening == self._rendezvous.listening:
                # The main thread may have served it, or the test closed it.
                with contextlib.suppress(RuntimeError):
                    self._rendezvous.serve()
            if self._channel.fileno() in ready:
                return

    def _answer(self, request: Probe | RequestCalls) -> None:
        # The main thread changes what is read here, and torch's recorder is a private interface. A
        # probe that fails proves nothing, and must not end the link.
        with contextlib.suppress(Exception):
            self.send(self._status_reporter.answer(request))

    def _debug(self, message: LiftTimeouts | EnterHang) -> None:
        assert self.debugger is not None
        if isinstance(message, EnterHang):
            enter = self.debugger.enter_hang
            threading.Thread(target=enter, name="pytest-ddp debugger", daemon=True).start()
            return
        # The main thread may make and destroy groups in the meantime.
        with contextlib.suppress(Exception):
            self.debugger.lift_timeouts()

    def _receive(self) -> tuple[Message, list[int]] | None:
        try:
            return self._channel.receive(self._serve_until_readable)
        except (OSError, ChannelError):
            # The latter if a test left no room for descriptors. A rank that no longer reads would
            # be waited for; a dead one is replaced.
            return None
