"""Holds a thread of this rank before a point, until all others wait, have ended, or poll.

The hold ends by their state. Only if that does not come it ends by time, which is counted:
:data:`COMPUTING` seconds in which another thread neither waits nor sleeps, and :data:`_SHARE` of
the test's timeout in all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pytest_ddp.extensions.explore.ranks.board import Board, Field, Progress, State, Turn
from pytest_ddp.extensions.explore.ranks.resting import PAUSE, RestWatch
from pytest_ddp.fixture import EnterPhase
from pytest_ddp.rank.operations.stream import Operations
from pytest_ddp.system import processes
from pytest_ddp.system.stdlib import select, threading, time

COMPUTING = 2.0
_SHARE = 1 / 3
_CALM = 3
"""Looks of each other rank in which nothing has moved, at least."""
_AGAIN = 2
"""Further looks of each after all were calm: a message may have been under way between two."""
_ENDED = frozenset({"", "Z", "X"})
"""States of a process that has ended."""
_REASON = "a schedule holds it"
"""Why the thread that runs the test waits; its phase shows what it does."""
_OFF_TRACK = 1.0
"""Seconds of rest after which a replay waits no longer for what the others have not done."""


class RankHold(NamedTuple):
    """A hold of a thread of this rank."""

    place: int
    """The index of the hold in the schedule."""
    thread: int
    point: str
    number: int
    words: str
    """What the thread does, for texts about the rank."""
    until: Progress | None = None
    """How far the other threads were when this hold ended in an earlier run."""


class Holder:
    """The holds of one run, on one rank."""

    def __init__(
        self,
        holds: Sequence[RankHold],
        board: Board,
        watch: RestWatch,
        operations: Operations,
        enter_phase: EnterPhase,
        timeout: float,
    ) -> None:
        self._holds = {(hold.thread, hold.point, hold.number): hold for hold in holds}
        self._board = board
        self._watch = watch
        self._operations = operations
        self._enter_phase = enter_phase
        self._left = timeout * _SHARE
        """Seconds for all holds of this rank."""

    def on_point(self, thread: int, name: str, number: int, arrive: Callable[[], None]) -> None:
        """A thread is about to pass a point: hold it, if that is in the schedule."""
        hold = self._holds.get((thread, name, number))
        if hold is None:
            return
        arrive()
        ident, began = threading.get_ident(), time.monotonic()
        turn = Turn.EXPIRED
        self._watch.hold(ident)
        self._board.begin_hold(hold.place)
        try:
            reason = hold.words if thread else _REASON
            with self._operations.holding(reason), self._enter_phase(hold.words):
                turn = self._wait(hold, began)
        finally:
            seconds = time.monotonic() - began
            self._left -= seconds
            self._watch.release(ident, lambda: self._board.end_hold(hold.place, turn, seconds))

    def _wait(self, hold: RankHold, began: float) -> Turn:
        """Wait until the thread may go on; returns what has ended the hold."""
        end = began + self._left
        computing_since = resting_since = None
        looks: dict[int, int] | None = None
        while (now := time.monotonic()) < end:
            select.select([], [], [], PAUSE)
            states = [self._state(rank) for rank in range(self._board.world_size)]
            if State.COMPUTES in states:
                computing_since = computing_since or now
                if now - computing_since > COMPUTING:
                    return Turn.EXPIRED
            else:
                computing_since = None
            if not self._rest(states, hold):
                looks = resting_since = None
                continue
            resting_since = resting_since or now
            looks = looks or self._looks()
            if self._have_looked_since(looks) and (
                self._reached(hold) or now - resting_since > _OFF_TRACK
            ):
                return Turn.OVER
        return Turn.EXPIRED

    def _rest(self, states: Sequence[State], hold: RankHold) -> bool:
        if any(self._board.turn(place) is Turn.HELD for place in range(hold.place)):
            return False  # that one ends first
        return all(
            state is State.ENDED or (state is State.RESTS and self._is_calm(rank))
            for rank, state in enumerate(states)
        )

    def _state(self, rank: int) -> State:
        state = State(self._board.get(rank, Field.STATE))
        process = self._board.get(rank, Field.PROCESS)
        has_ended = process and processes.state_of(f"/proc/{process}") in _ENDED
        return State.ENDED if has_ended else state

    def _is_calm(self, rank: int) -> bool:
        if self._board.get(rank, Field.CALM) < _CALM:
            return False
        exchange = self._board.get(rank, Field.EXCHANGE)
        if not exchange:
            return True
        # Where all have come to it, its end is under way through the pytest process.
        everyone = range(self._board.world_size)
        begun = (self._board.get(other, Field.EXCHANGES) for other in everyone)
        return any(count < exchange for count in begun)

    def _looks(self) -> dict[int, int]:
        everyone = range(self._board.world_size)
        return {rank: self._board.get(rank, Field.LOOKS) for rank in everyone}

    def _have_looked_since(self, looks: Mapping[int, int]) -> bool:
        return all(
            self._board.get(rank, Field.LOOKS) >= before + _AGAIN
            or self._state(rank) is State.ENDED
            for rank, before in looks.items()
        )

    def _reached(self, hold: RankHold) -> bool:
        if hold.until is None:
            return True
        now = self._board.progress()
        return all(
            now.get(place, 0) >= count
            for place, count in hold.until.items()
            if place != (self._board.rank, hold.thread)
        )
