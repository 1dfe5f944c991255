"""What ranks show each other while one of them is held: shared memory, a row for each rank.

Each field is a word of eight bytes that one thread writes, so that no reader sees half of it.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

from pytest_ddp.system.stdlib import mmap, os


class State(enum.IntEnum):
    """What a rank does, held threads aside."""

    COMPUTES = 0
    """A thread of the rank does something, or may; what every rank does until it has looked."""
    SLEEPS = 1
    """No thread does something, but one will by itself: it sleeps, or waits for a process."""
    RESTS = 2
    """All threads of the rank wait, or poll."""
    ENDED = 3
    """The test has ended on the rank."""


class Field(enum.IntEnum):
    """A word of a rank's row."""

    STATE = 0
    LOOKS = 1
    """How often the rank has looked at its threads."""
    CALM = 2
    """The number of the rank's last looks in which nothing had moved."""
    EXCHANGES = 3
    """How many operations of the ``ddp`` fixture the rank has begun."""
    EXCHANGE = 4
    """The number of the fixture's operation in which the rank waits; 0 for none."""
    PROCESS = 5


class Turn(enum.IntEnum):
    """How far a hold of the schedule is."""

    COMING = 0
    HELD = 1
    OVER = 2
    """The state of all other threads has ended the hold."""
    EXPIRED = 3
    """A bound has ended the hold."""


HOLDS = 8
"""Holds of a schedule, at most."""
_THREADS = 24
"""Threads of a rank whose points are counted; later ones are not waited for in a replay."""
_WORD = 8
_ROW = len(Field) + _THREADS
_ROWS = 2 * HOLDS
"""The index of the first row's first word: a turn and the milliseconds of each hold are before."""

Progress: TypeAlias = dict[tuple[int, int], int]
"""How many points each thread has passed, by rank and thread; without those that passed none."""


def size(world_size: int) -> int:
    """Bytes of a board."""
    return (_ROWS + world_size * _ROW + HOLDS * world_size * _THREADS) * _WORD


class Board:
    """The board of one run, as one process sees it."""

    def __init__(self, path: str, rank: int, world_size: int) -> None:
        """
        Args:
            path: of its file, which has the size of a board and begins as zeros.
            rank: whose row :meth:`put` writes.
            world_size: number of ranks.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            memory = mmap.mmap(descriptor, size(world_size))
        finally:
            os.close(descriptor)
        self._words = memoryview(memory).cast("Q")
        self.rank = rank
        self.world_size = world_size

    def get(self, rank: int, field: Field) -> int:
        """A field of any rank."""
        return self._words[_ROWS + rank * _ROW + field]

    def put(self, field: Field, value: int) -> None:
        """Set a field of this rank."""
        self._words[_ROWS + self.rank * _ROW + field] = value

    def passed(self, thread: int) -> None:
        """A thread of this rank has passed a point."""
        if thread < _THREADS:
            self._words[_ROWS + self.rank * _ROW + len(Field) + thread] += 1

    def progress(self) -> Progress:
        """How many points all threads have passed."""
        begins = (_ROWS + rank * _ROW + len(Field) for rank in range(self.world_size))
        return self._counts([*begins])

    def progress_at_end(self, hold: int) -> Progress:
        """How many points all threads had passed when a hold ended."""
        first = self._snapshot(hold)
        return self._counts([first + rank * _THREADS for rank in range(self.world_size)])

    def _counts(self, begins: list[int]) -> Progress:
        return {
            (rank, thread): count
            for rank, begin in enumerate(begins)
            for thread, count in enumerate(self._words[begin : begin + _THREADS])
            if count
        }

    def _snapshot(self, hold: int) -> int:
        return _ROWS + self.world_size * (_ROW + hold * _THREADS)

    # ------------------------------------------------------------------ holds, by their places

    def turn(self, hold: int) -> Turn:
        """How far a hold is."""
        return Turn(self._words[hold])

    def seconds(self, hold: int) -> float:
        """Seconds that a hold has lasted; 0 if it has not ended."""
        return self._words[HOLDS + hold] / 1000

    def begin_hold(self, hold: int) -> None:
        """A thread of this rank is held."""
        self._words[hold] = Turn.HELD

    def end_hold(self, hold: int, turn: Turn, seconds: float) -> None:
        """A thread of this rank is held no longer; keep how many points all threads have passed."""
        first = self._snapshot(hold)
        for (rank, thread), count in self.progress().items():
            self._words[first + rank * _THREADS + thread] = count
        self._words[HOLDS + hold] = int(seconds * 1000)
        self._words[hold] = turn

    def is_any_held(self) -> bool:
        """Whether a thread of any rank is held."""
        return Turn.HELD in self._words[:HOLDS].tolist()
