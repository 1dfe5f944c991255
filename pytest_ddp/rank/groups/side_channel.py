"""Operations of the ``ddp`` fixture that a rank waits for; the prover sees them as one group."""

from __future__ import annotations

from pytest_ddp.protocol.messages import FixtureOperation
from pytest_ddp.protocol.rank_status import SIDE_CHANNEL, PendingOperation
from pytest_ddp.system.stdlib import threading


class SideChannel:
    """A rank's exchanges in one test, or in the teardown at the end of the session."""

    def __init__(self) -> None:
        self.exchanges = 0
        """How many exchanges the rank has begun."""
        self._members: tuple[int, ...] = ()
        self._pending: tuple[int, PendingOperation] | None = None
        """Identifier of the waiting thread, and its wait; the fixture admits one at a time."""

    def begin(self, world_size: int) -> None:
        """Start over for a new test with ``world_size`` ranks."""
        self.exchanges = 0
        self._members = tuple(range(world_size))
        self._pending = None

    def arrive(self, operation: FixtureOperation) -> int:
        """Begin an exchange on the calling thread; returns its number, from 1."""
        number = self.exchanges + 1
        wait = PendingOperation(
            group=SIDE_CHANNEL,
            members=self._members,
            number=number,
            operation=f"ddp.{operation}",
            recorded_as=None,
            numel=None,
            dtype=None,
            peer=None,
            tag=None,
            site=None,
        )
        self._pending = threading.get_ident(), wait
        self.exchanges = number
        return number

    def leave(self, number: int) -> None:
        """End an exchange, whose answer has arrived.

        Called by the thread that reads the answer: the thread that waits for it may wake up only
        after the next probe.
        """
        if self._pending is not None and self._pending[1].number == number:
            self._pending = None

    def wait(self, thread: int) -> PendingOperation | None:
        """The exchange that a thread waits for, if any."""
        pending = self._pending
        return pending[1] if pending is not None and pending[0] == thread else None
