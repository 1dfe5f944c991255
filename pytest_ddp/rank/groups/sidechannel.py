"""What a rank waits for in the operations of the ``ddp`` fixture: one more group to the prover."""

from __future__ import annotations

from pytest_ddp.system.own import threading
from pytest_ddp.wire.protocol import Operation
from pytest_ddp.wire.survey import SIDE_CHANNEL, Wait


class SideChannel:
    """The exchanges of one test, or of the last teardown, as this rank takes part in them."""

    def __init__(self) -> None:
        self.exchanges = 0
        """How many of them the rank has come to."""
        self._members: tuple[int, ...] = ()
        self._pending: tuple[int, Wait] | None = None
        """Who waits, by thread identifier, and for what; the fixture lets one thread in."""

    def begin(self, world_size: int) -> None:
        """A new test, of so many ranks."""
        self.exchanges = 0
        self._members = tuple(range(world_size))
        self._pending = None

    def arrive(self, operation: Operation) -> int:
        """The calling thread comes to an exchange; which it is, from 1."""
        number = self.exchanges + 1
        wait = Wait(
            group=SIDE_CHANNEL,
            members=self._members,
            number=number,
            operation=f"ddp.{operation}",
            recorded_as=None,
            numel=None,
            dtype=None,
            peer=None,
            tag=None,
            site="",
        )
        self._pending = threading.get_ident(), wait
        self.exchanges = number
        return number

    def leave(self, number: int) -> None:
        """The exchange is answered.

        Called by the thread that reads the answer, and not by the one that waits for it,
        which may wake up later than the next probe comes.
        """
        if self._pending is not None and self._pending[1].number == number:
            self._pending = None

    def wait(self, thread: int) -> Wait | None:
        """What a thread waits for."""
        pending = self._pending
        return pending[1] if pending is not None and pending[0] == thread else None
