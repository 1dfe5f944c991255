"""What ranks show each other while one of them is held: shared memory, a row for each rank.

Each field is a word of eight bytes that one thread writes, so that no reader sees half of it.
"""

from __future__ import annotations

import enum

from pytest_ddp.system.stdlib import mmap, os


class State(enum.IntEnum):
    """What a rank does, held threads aside."""

    COMPUTES = 0
    """One of its threads does something, or may; what every rank does until it has looked."""
    SLEEPS = 1
    """None does, but one will by itself: it sleeps, or waits for a process."""
    RESTS = 2
    """All wait, or poll."""
    ENDED = 3
    """The test has ended on it."""


class Field(enum.IntEnum):
    """A word of a rank's row."""

    STATE = 0
    LOOKS = 1
    """How often it has looked at its threads."""
    CALM = 2
    """In how many of the last looks nothing had moved."""
    EXCHANGES = 3
    """How many operations of the ``ddp`` fixture it has begun."""
    EXCHANGE = 4
    """The one that its thread waits in; 0 for none."""
    PROCESS = 5


class Turn(enum.IntEnum):
    """How far a hold of the schedule is."""

    COMING = 0
    HELD = 1
    OVER = 2


HOLDS = 8
"""Holds of a schedule, at most."""
_THREADS = 24
"""Threads of a rank whose points are counted; later ones are not waited for in a replay."""
_WORD = 8
_ROW = len(Field) + _THREADS


def size(world_size: int) -> int:
    """Bytes of a board."""
    return (HOLDS + world_size * _ROW) * _WORD


class Board:
    """The board of one run, as one rank sees it."""

    def __init__(self, path: str, rank: int, world_size: int) -> None:
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
        return self._words[HOLDS + rank * _ROW + field]

    def put(self, field: Field, value: int) -> None:
        """Set a field of this rank."""
        self._words[HOLDS + self.rank * _ROW + field] = value

    def passed(self, thread: int) -> None:
        """A thread of this rank has passed a point."""
        if thread < _THREADS:
            self._words[HOLDS + self.rank * _ROW + len(Field) + thread] += 1

    def progress(self) -> dict[tuple[int, int], int]:
        """How many points each thread of each rank has passed; of those that have passed any."""
        counts = {}
        for rank in range(self.world_size):
            begin = HOLDS + rank * _ROW + len(Field)
            for thread, count in enumerate(self._words[begin : begin + _THREADS]):
                if count:
                    counts[rank, thread] = count
        return counts

    def turn(self, hold: int) -> Turn:
        """How far a hold is, by its place in the schedule."""
        return Turn(self._words[hold])

    def set_turn(self, hold: int, turn: Turn) -> None:
        """Set how far a hold of a thread of this rank is."""
        self._words[hold] = turn

    def is_any_held(self) -> bool:
        """Whether a thread of any rank is held."""
        return Turn.HELD in self._words[:HOLDS].tolist()
