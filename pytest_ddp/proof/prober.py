"""Asks the ranks of a running test where they stand, when they have been quiet."""

from __future__ import annotations

import time

from pytest_ddp.launcher import RankProcess
from pytest_ddp.outcome import Hang
from pytest_ddp.proof.prover import Stand, prove
from pytest_ddp.survey import GroupCount, Probe, Standing

_QUIET = 0.2
"""Seconds without news after which the first probe goes out."""
_INTERVAL = 0.2
"""Seconds between probes; two of them make a proof."""
_SLOWEST = 2.0
"""Seconds between probes of ranks that have been found at work again and again."""


class Prober:
    """One test's probes and their answers."""

    def __init__(self, test: int, processes: list[RankProcess]) -> None:
        self._test = test
        self._processes = processes
        self._number = 0
        self._interval = _INTERVAL
        self._due = time.monotonic() + _QUIET
        self._now: dict[int, Standing] = {}
        self._ended: set[int] = set()
        """Ranks that had ended when they gave their present answer."""
        self._before: dict[int, Standing] = {}

    def due_in(self) -> float:
        """Seconds until the next probe."""
        return max(0.0, self._due - time.monotonic())

    def hear(self) -> None:
        """A rank has moved: leave them alone for a while."""
        self._interval = _INTERVAL
        self._due = max(self._due, time.monotonic() + _QUIET)

    def probe(self) -> None:
        """Ask every living rank, if it is time."""
        if time.monotonic() < self._due:
            return
        if len(self._now) == self._living():
            self._before = self._now
        self._number += 1
        self._now = {}
        self._ended = set()
        for process in self._processes:
            if not process.gone:
                process.send(Probe(self._test, self._number))
        self._due = time.monotonic() + self._interval
        self._interval = min(self._interval * 1.2, _SLOWEST)

    def take(self, rank: int, standing: Standing, ended: set[int]) -> Hang | None:
        """Take an answer; the proof of a hang if it completes one.

        Args:
            rank: who answered.
            standing: the answer.
            ended: ranks that have run their part to the end.
        """
        if standing.number != self._number:
            return None
        self._now[rank] = standing
        # Of a rank that has ended since it answered, the answer says too little.
        if rank in ended:
            self._ended.add(rank)
        if len(self._now) < self._living():
            return None
        return prove(
            {
                rank: Stand(standing, self._before.get(rank), rank in self._ended)
                for rank, standing in self._now.items()
            }
        )

    def counts(self) -> dict[int, tuple[GroupCount, ...]]:
        """Collectives of each rank by the last answers."""
        return {rank: standing.counts for rank, standing in self._now.items()}

    def _living(self) -> int:
        return sum(not process.gone for process in self._processes)
