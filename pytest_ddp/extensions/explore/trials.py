"""Which schedules to try, in which order. Pure, and without chance.

Runs show conflicts. For each, the thread that came first is held at its point, so that the other
comes before it. The holds come in this order:

1. for each kind of conflict once;
2. for each kind again, with another thread held or at the other line;
3. each started thread at its begin, then each rank at the test's begin;
4. for each kind its last occurrence;
5. two holds: one that was tried, and one of a conflict which that run has shown; then two begins;
6. for each conflict that is left, which is another occurrence of something that was tried.

A conflict needs no hold of its own if an earlier one has turned its order around.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TypeAlias

from pytest_ddp.extensions.explore.conflicts import Conflict, Kind, conflicts
from pytest_ddp.extensions.explore.run_events import BEGIN, Event, RankThread, Threads
from pytest_ddp.extensions.explore.schedule import Hold, Schedule

_Name: TypeAlias = tuple[Hold, int]
"""What an event is called in all runs: the last point of its thread, and the events since."""

_Pair: TypeAlias = tuple[_Name, _Name]
"""Two events, in the order in which they came."""


class Exploration:
    """What the runs of one test have shown, and which schedule to try next."""

    def __init__(self) -> None:
        self._runs: list[_HeldRun] = []
        self._conflicts: dict[_Pair, Conflict] = {}
        """All that were found, each once, in the order that was seen first."""
        self._done: set[_Pair] = set()
        """Those of which both orders were seen, or the other one tried."""

    def ran(self, schedule: Schedule, threads: Threads) -> None:
        """Note what a run has shown.

        Args:
            schedule: of that run; empty for a plain one.
            threads: what its threads did. Those of ranks that have died may be missing.
        """
        run = _HeldRun(schedule, threads)
        self._runs.append(run)
        for conflict in run.conflicts:
            pair = run.names[conflict.first], run.names[conflict.second]
            if pair not in self._conflicts and pair[::-1] not in self._conflicts:
                self._conflicts[pair] = conflict
                if any(known.has_in_order(*pair[::-1]) for known in self._runs):
                    self._done.add(pair)
        self._done.update(
            pair
            for pair, conflict in self._conflicts.items()
            if run.has_turned(*pair) or schedule == (_hold(conflict),)
        )

    def next_schedule(self) -> Schedule | None:
        """The schedule to try; None if there is none left."""
        tried = {run.schedule for run in self._runs}
        schedules = itertools.chain(
            ((hold,) for hold in self._single_holds()),
            self._pairs(),
            ((_hold(conflict),) for _, conflict in self._open()),
        )
        return next((schedule for schedule in schedules if schedule not in tried), None)

    @property
    def kinds(self) -> int:
        """How many kinds of conflicts the runs have shown."""
        return len({conflict.kind for conflict in self._conflicts.values()})

    @property
    def open_kinds(self) -> int:
        """Of how many of these some conflict was not yet tried in both orders."""
        return len({c.kind for pair, c in self._conflicts.items() if pair not in self._done})

    def turned(self) -> tuple[Conflict, ...]:
        """The conflicts whose order the last run has turned around; those of its own holds first,
        then from the latest."""
        run = self._runs[-1]
        found = [c for pair, c in self._conflicts.items() if run.has_turned(*pair)]
        own = [conflict for conflict in found if _hold(conflict) in run.schedule]
        return *own, *(conflict for conflict in reversed(found) if conflict not in own)

    def _open(self) -> list[tuple[_Pair, Conflict]]:
        """The conflicts to be tried that have a point which plain runs reach."""
        plain = set().union(*(run.moments for run in self._runs if not run.schedule))
        return [
            (pair, conflict)
            for pair, conflict in self._conflicts.items()
            if pair not in self._done and (_hold(conflict), 0) in plain
        ]

    def _single_holds(self) -> Iterator[Hold]:
        views: defaultdict[Kind, set[_View]] = defaultdict(set)
        for pair in self._done:
            conflict = self._conflicts[pair]
            views[conflict.kind].add(_view(conflict))
        candidates = [conflict for _, conflict in self._open()]
        # sorted() keeps the order of what is equal, here that of time.
        for conflict in sorted(candidates, key=lambda c: len(views[c.kind])):
            if _view(conflict) not in views[conflict.kind]:
                yield _hold(conflict)
        yield from self._begins()
        last = {conflict.kind: pair for pair, conflict in self._conflicts.items()}
        yield from (
            _hold(conflict) for pair, conflict in self._open() if last[conflict.kind] == pair
        )

    def _begins(self) -> list[Hold]:
        """The begins of all threads, if there are several: those that the test starts first."""
        holds = {
            hold
            for run in self._runs
            if not run.schedule
            for hold, _ in run.moments
            if hold.point == BEGIN
        }
        if len(holds) < 2:
            return []
        return sorted(holds, key=lambda hold: (hold.thread.thread == 0, hold))

    def _pairs(self) -> Iterator[Schedule]:
        rated = []
        occurrences: Counter[tuple[str, Kind]] = Counter()
        for run in self._runs:
            if len(run.schedule) == 1 and (run.schedule[0], 0) in run.moments:
                flipped = [pair for pair in self._conflicts if run.has_turned(*pair)]
                for conflict in run.conflicts:
                    if schedule := _with_second_hold(run, conflict, flipped):
                        same = run.schedule[0].point, conflict.kind
                        one_thread = len({hold.thread for hold in schedule}) == 1
                        rated.append((one_thread, occurrences[same], schedule))
                        occurrences[same] += 1
        # sorted() keeps the order of what is equal, here that of the runs.
        yield from (schedule for *_, schedule in sorted(rated, key=lambda each: each[:2]))
        begins = self._begins()
        if len(begins) > 2:
            yield from itertools.permutations(begins, 2)


class _HeldRun:
    """A run and what it has shown."""

    def __init__(self, schedule: Schedule, threads: Threads) -> None:
        self.schedule = schedule
        self.conflicts = conflicts(threads)
        self.names: dict[Event, _Name] = {}
        self.moments: dict[_Name, float] = {}
        for events in threads:
            point, since = Hold(RankThread(0), "", 0), 0
            for event in events:
                if event.point:
                    point, since = Hold(event.thread, event.point, event.number), 0
                else:
                    since += 1
                name = point._replace(thread=event.thread), since
                self.names[event] = name
                self.moments[name] = event.at

    def has_in_order(self, one: _Name, other: _Name) -> bool:
        """Whether both events came, the one before the other."""
        moments = self.moments
        return one in moments and other in moments and moments[one] < moments[other]

    def has_turned(self, first: _Name, second: _Name) -> bool:
        """Whether a hold of the first event's thread made the second one come before.

        The hold has ended when all other threads waited, so the second event's operation was over.
        Without a hold two events may come within microseconds, and what happened first is unknown.
        """
        return any(
            hold.thread == first[0].thread
            and self.has_in_order(second, (hold, 0))
            and not self.has_in_order(first, (hold, 0))
            and first in self.moments
            for hold in self.schedule
        )


_View: TypeAlias = tuple[RankThread, str]
"""From where a conflict of a kind is tried: the held thread, and its line."""


def _view(conflict: Conflict) -> _View:
    return conflict.held.thread, conflict.first.site


def _hold(conflict: Conflict) -> Hold:
    """The hold that turns a conflict around."""
    held = conflict.held
    return Hold(held.thread, held.point, held.number)


def _with_second_hold(run: _HeldRun, conflict: Conflict, flipped: list[_Pair]) -> Schedule | None:
    """The hold of a run with one that turns a conflict of it around; None if that shows no order
    which one hold does not show as well."""
    hold, other = run.schedule[0], _hold(conflict)
    if hold == other:
        return None
    released, passed = run.moments[hold, 0], conflict.held.at
    if hold.thread == other.thread:  # the point that the thread reaches first
        return (other, hold) if passed < released else (hold, other)
    if conflict.second.thread == hold.thread and conflict.second.at >= released:
        # Only after the first hold does the thread do what must come before the second. What the
        # other thread does from its hold on comes after the first hold as well.
        flipped = [
            pair
            for pair in flipped
            if pair[1][0].thread != other.thread or run.moments[pair[1]] < passed
        ]
        schedule = hold, other
    else:
        schedule = (hold, other) if passed >= released else (other, hold)
    return schedule if flipped else None
