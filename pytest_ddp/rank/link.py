"""The rank's side of its channel to the controller."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol

from pytest_ddp.fixture import DdpError
from pytest_ddp.rank.exits import faults
from pytest_ddp.rank.groups.sidechannel import SideChannel
from pytest_ddp.rank.watch.standing import Surveyor
from pytest_ddp.system.own import os, queue, signal, threading
from pytest_ddp.wire.channel import Channel
from pytest_ddp.wire.debugging import (
    EnterHang,
    LeaveTerminal,
    LiftTimeouts,
    TakeTerminal,
    WantTerminal,
)
from pytest_ddp.wire.marker import SEEN, Page, cut_off
from pytest_ddp.wire.protocol import (
    EXIT_LINK_LOST,
    EndAnnounced,
    Exchange,
    ExchangeReply,
    Finish,
    FromRank,
    Go,
    Message,
    Operation,
    RunTest,
    Save,
    Saved,
    Warned,
)
from pytest_ddp.wire.survey import Probe, TellCalls


class Debugger(Protocol):
    """What the controller may want of a rank's debugger while the main thread is busy."""

    def lift_timeouts(self) -> None: ...
    def enter_hang(self) -> None: ...


class Link:
    """Reads in a thread of its own, so that the end of the controller is seen at once."""

    def __init__(
        self, channel: Channel, side_channel: SideChannel, surveyor: Surveyor, page: Page
    ) -> None:
        self._channel = channel
        self._side_channel = side_channel
        self._surveyor = surveyor
        self._page = page
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._orders: queue.SimpleQueue[tuple[RunTest | Finish, list[int]]] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[ExchangeReply] = queue.SimpleQueue()
        self._go: queue.SimpleQueue[Go] = queue.SimpleQueue()
        self._terminal: queue.SimpleQueue[tuple[str | None, list[int]]] = queue.SimpleQueue()
        self.debugger: Debugger | None = None
        self.test = -1
        """Number of the test that runs."""
        self.save: Callable[[], None] = lambda: None
        """Saves the coverage that the rank has measured; a test that is looked at may die soon."""
        threading.Thread(target=self._read, name="pytest-ddp link", daemon=True).start()

    def next_order(self) -> tuple[RunTest | Finish, list[int]]:
        """Wait for what the controller wants next."""
        return self._orders.get()

    def send(
        self, message: FromRank, descriptors: tuple[int, ...] = (), *, more: bool = False
    ) -> None:
        """Tell the controller; with ``more``, together with what is told next.

        A process that is not the rank itself ends here.
        """
        self._be_the_rank()
        try:
            with self._lock:
                self._channel.send(message, descriptors, more=more)
        except OSError:
            faults.leave(EXIT_LINK_LOST)

    def warn(self, text: str, file: str = __file__, line: int = 1) -> None:
        """Have the controller warn of what is no warning of the test's own."""
        self.send(Warned("pytest_ddp:DdpWarning", text, file, line, "runtest", ""))

    def announce_end(self, codes: tuple[int, ...], others: bool) -> None:
        """Have the controller know how the test's process is to end; see :class:`EndAnnounced`."""
        self.send(EndAnnounced(self.test, codes, others))

    def check(self) -> None:
        """End a process that could not tell anything, or must not."""
        self._be_the_rank()
        if not self._channel.is_there():
            faults.leave(EXIT_LINK_LOST)

    def _be_the_rank(self) -> None:
        if os.getpid() != self._pid:
            # A child that the test forked returned into pytest's protocol. Its
            # reports would be taken for the rank's.
            faults.leave(1)

    def wait_for_go(self, test: int) -> None:
        """Wait until every rank of the test is ready to begin it."""
        while self._go.get().test != test:
            """Left over from a test that was given up."""

    def exchange(self, operation: Operation, source: int | None, payload: str) -> tuple[str, ...]:
        """Take part in a side-channel operation.

        Raises:
            DdpError: it can never complete.
        """
        number = self._side_channel.arrive(operation)
        self.send(Exchange(self.test, number, operation, source, payload))
        while (reply := self._replies.get()).number != number:
            """A late answer to an operation that the last test gave up."""
        if reply.error is not None:
            raise DdpError(reply.error)
        return reply.payloads

    def want_terminal(self) -> tuple[str | None, list[int]]:
        """Wait for the terminal: why there is none, or its descriptors."""
        self.send(WantTerminal(self.test))
        return self._terminal.get()

    def leave_terminal(self, steps: bool, quits: bool) -> None:
        """Give the terminal back; see :class:`LeaveTerminal`."""
        self.send(LeaveTerminal(self.test, steps, quits))

    def _read(self) -> None:
        while (received := self._receive()) is not None:
            message, descriptors = received
            match message:
                case ExchangeReply():
                    self._side_channel.leave(message.number)
                    self._replies.put(message)
                case Probe() | TellCalls():
                    self._answer(message)
                    self.save()
                case Save():
                    self.save()
                    self.send(Saved(message.test))
                case Go():
                    self._go.put(message)
                case TakeTerminal():
                    self._terminal.put((message.refusal, descriptors))
                case LiftTimeouts() | EnterHang():
                    self._debug(message)
                case RunTest() | Finish():
                    self._orders.put((message, descriptors))
                case _:
                    raise AssertionError(f"{message} is not for a rank that runs")
        # The test has closed the channel, or the controller is gone: take the DataLoader workers
        # along. Of the former the page tells, which needs no descriptor.
        self._page.write(SEEN, cut_off())
        os.killpg(0, signal.SIGKILL)

    def _answer(self, question: Probe | TellCalls) -> None:
        # The main thread changes what is read here, and torch's recorder is a private
        # interface. A probe that fails proves nothing, and must not end the link.
        with contextlib.suppress(Exception):
            self.send(self._surveyor.answer(question))

    def _debug(self, message: LiftTimeouts | EnterHang) -> None:
        assert self.debugger is not None
        if isinstance(message, EnterHang):
            enter = self.debugger.enter_hang
            threading.Thread(target=enter, name="pytest-ddp debugger", daemon=True).start()
            return
        # The main thread may make and destroy groups meanwhile.
        with contextlib.suppress(Exception):
            self.debugger.lift_timeouts()

    def _receive(self) -> tuple[Message, list[int]] | None:
        try:
            return self._channel.receive()
        except OSError:
            return None
