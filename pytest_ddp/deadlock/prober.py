"""Probes the ranks of a running test for their status, when they have been quiet."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from pytest_ddp.deadlock.likely_causes import with_hint
from pytest_ddp.deadlock.prover import ProbedRank, prove
from pytest_ddp.launch.rank_process import RankProcess
from pytest_ddp.outcome.outcome import Hang
from pytest_ddp.protocol.rank_status import GroupCount, Probe, RankStatus
from pytest_ddp.system.stdlib import time

_QUIET = 0.2
"""Seconds without news after which the first probe goes out."""
_INTERVAL = 0.2
"""Seconds between the first probes; a proof needs two."""
_SLOWEST = 2.0
"""Seconds between probes at most: each probe without a proof makes the interval longer."""


class Prober:
    """One test's probes and their answers."""

    def __init__(
        self,
        test: int,
        processes: list[RankProcess],
        deadline: float,
        rank_of: Callable[[Any], int] = attrgetter("rank"),
    ) -> None:
        self._test = test
        self._rank_of = rank_of
        self._deadline = deadline
        """When the test is stopped, on the monotonic clock."""
        self._expected: Hang | None = None
        """The hang that there would be if no timeout of a group or a call ended it in time."""
        self._processes = processes
        self._open = list(processes)
        """A prefix of ``_processes``: all after it have answered the last probe, or are gone."""
        self._number = 0
        self._interval = _INTERVAL
        self._due = time.monotonic() + _QUIET
        self._now: dict[int, RankStatus] = {}
        self._ended: set[int] = set()
        """Ranks that had ended when they gave their answer in ``_now``."""
        self._before: dict[int, RankStatus] = {}

    def due_in(self) -> float:
        """Seconds until the next probe."""
        return max(0.0, self._due - time.monotonic())

    def hear(self) -> None:
        """A rank has sent a message, so it moves: delay the next probe."""
        self._interval = _INTERVAL
        self._due = max(self._due, time.monotonic() + _QUIET)

    def end_by(self, deadline: float) -> None:
        """Set the moment at which the test is stopped, on the monotonic clock."""
        self._deadline = deadline

    def postpone(self, seconds: float) -> None:
        """All clocks were paused for so many seconds: discard the answers from before."""
        self._deadline += seconds
        self._before, self._now, self._number = {}, {}, self._number + 1
        self._open = list(self._processes)
        self._interval = _INTERVAL
        self._due = time.monotonic() + _QUIET

    def probe(self) -> None:
        """Probe every living rank, if it is due."""
        if time.monotonic() >= self._due:
            self.ask()

    def ask(self) -> None:
        """Probe every living rank now."""
        if self.is_answered():
            self._before = self._now
        self._number += 1
        self._now = {}
        self._open = list(self._processes)
        self._ended = set()
        for process in self._processes:
            if not process.gone:
                process.send(Probe(self._test, self._number))
        self._due = time.monotonic() + self._interval
        self._interval = min(self._interval * 1.2, _SLOWEST)

    def take(self, rank: int, status: RankStatus, has_ended: bool) -> Hang | None:
        """Take an answer; the proof of a hang if it completes one.

        Args:
            rank: the rank that answered.
            status: the answer.
            has_ended: whether the rank has run its part to the end.
        """
        if status.number != self._number:
            return None
        self._now[rank] = status
        # Noted with the answer: a rank may end between its answer and the proof.
        if has_ended:
            self._ended.add(rank)
        return self._prove() if self.is_answered() else None

    def _prove(self) -> Hang | None:
        probed = {
            rank: ProbedRank(status, self._before.get(rank), rank in self._ended)
            for rank, status in self._now.items()
        }
        hang = prove(probed, self._deadline - time.monotonic())
        if hang is None:
            self._expected = prove(probed) or self._expected
            return None
        return with_hint(hang, probed)

    def counts(self) -> dict[int, tuple[GroupCount, ...]]:
        """Collectives of each rank in the last answers."""
        return {rank: status.counts for rank, status in self._now.items()}

    def is_answered(self) -> bool:
        """True if every living rank has answered the last probe."""
        # Called for each answer: it shortens the list instead of looking at hundreds of ranks.
        while self._open and (self._open[-1].gone or self._rank_of(self._open[-1]) in self._now):
            self._open.pop()
        return not self._open

    def spared(self) -> str:
        """The hang that only a timeout of a group or a call has ended; empty if there was none."""
        return f"Only a timeout could end this {self._expected.sentence}." if self._expected else ""

    def answers(self) -> dict[int, RankStatus]:
        """The answers to the last probe, by rank."""
        return dict(self._now)
