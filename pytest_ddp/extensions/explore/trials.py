"""Which schedules to try, in which order. Pure, and without chance.

Runs show conflicts. For each, the thread that came first is held at its point, so that the other
comes before it. The holds come in this order:

1. for each kind of conflict once;
2. for each kind again, with another thread held, at the other line, or at another operation;
3. each started thread at its begin, then each rank at the test's begin;
4. for each kind its last occurrence; then between two uses of one thing by a thread, such as a look
   and the change after it, where an earlier hold has turned both around; last where the other
   thread only passes through the folder that is used;
5. two holds: one that was tried, and one of a conflict of that run, of whose kind a hold was tried
   alone; then two begins. By turns with these come the conflicts that are left: other occurrences
   of what was tried, which in a long loop would leave no run for two holds.

Before 5, a conflict needs no hold of its own if an earlier one has turned its order around.
"""

from __future__ import annotations

import itertools
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import TypeAlias

from pytest_ddp.extensions.explore.conflicts import THROUGH, Conflict, Kind, conflicts
from pytest_ddp.extensions.explore.ranks.accesses import Thing
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
        """All conflicts that were found, each once, in the order that was seen first."""
        self._done: set[_Pair] = set()
        """The conflicts of which both orders were seen, or the other one tried."""

    def ran(self, schedule: Schedule, threads: Threads) -> None:
        """Note what a run has shown.

        Args:
            schedule: of that run; empty for a plain one.
            threads: what its threads did. Those of ranks that have died may be missing.
        """
        run = _HeldRun(schedule, threads)
        self._runs.append(run)
        for conflict in run.conflicts:
            pair = run.pair(conflict)
            if pair not in self._conflicts and pair[::-1] not in self._conflicts:
                self._conflicts[pair] = conflict
                if any(known.has_in_order(*pair[::-1]) for known in self._runs):
                    self._done.add(pair)
        plain = self._plain_holds()
        # What only a held run reaches is tried with that run's hold.
        tried = {
            hold
            for each in self._runs
            for hold in each.schedule
            if len(each.schedule) == 1 or hold not in plain
        }
        self._done.update(
            pair
            for pair, conflict in self._conflicts.items()
            if run.has_turned(*pair) or _hold(conflict) in tried
        )

    def next_schedule(self) -> Schedule | None:
        """The schedule to try; None if there is none left."""
        tried = {run.schedule for run in self._runs}

        def first(schedules: Iterable[Schedule]) -> Schedule | None:
            return next((schedule for schedule in schedules if schedule not in tried), None)

        if single := first((hold,) for hold in self._telling_holds()):
            return single
        counts = [len(run.schedule) for run in self._runs]
        since = counts[counts.index(2) :] if 2 in counts else []
        pair = first(self._pairs())
        if pair and since.count(1) >= since.count(2):
            return pair
        return first((hold,) for hold in self._other_holds()) or pair

    @property
    def kinds(self) -> int:
        """How many kinds of conflicts the runs have shown."""
        return len({conflict.kind for conflict in self._conflicts.values()})

    @property
    def open_kinds(self) -> int:
        """How many kinds have a conflict that was not yet tried in both orders."""
        return len({c.kind for pair, c in self._conflicts.items() if pair not in self._done})

    def turned(self, schedule: Schedule) -> dict[Hold, Conflict]:
        """What the last run with a schedule has turned around: for each hold the most telling
        conflict, where one is known."""
        run = next(run for run in reversed(self._runs) if run.schedule == schedule)
        turned = [c for pair, c in self._conflicts.items() if run.has_turned(*pair)]
        # Of two holds the second may turn back what the first one has turned around.
        back = [_swapped(c) for pair, c in self._conflicts.items() if run.has_turned(*pair[::-1])]
        found: dict[Hold, Conflict] = {}
        for hold in schedule:
            # Ranks that have died leave no events: what was meant to be turned around comes last.
            told = itertools.chain(
                (conflict for conflict in turned if _hold(conflict) == hold),
                (conflict for conflict in reversed(turned) if conflict.held.thread == hold.thread),
                (conflict for conflict in self._conflicts.values() if _hold(conflict) == hold),
                (conflict for conflict in back if _hold(conflict) == hold),
            )
            if conflict := next(told, None):
                found[hold] = conflict
        return found

    def _open(self) -> list[Conflict]:
        """The conflicts to be tried with one hold."""
        plain = self._plain_holds()
        return [
            conflict
            for pair, conflict in self._conflicts.items()
            if pair not in self._done and _hold(conflict) in plain
        ]

    def _plain_holds(self) -> set[Hold]:
        """The points that runs without a hold have reached."""
        plain = (run for run in self._runs if not run.schedule)
        return {hold for run in plain for hold, since in run.moments if not since}

    def _telling_holds(self) -> Iterator[Hold]:
        views: defaultdict[Kind, set[_View]] = defaultdict(set)
        for pair in self._done:
            conflict = self._conflicts[pair]
            views[conflict.kind].add(_view(conflict))
        open_ = self._open()
        # sorted() keeps the order of what is equal, here that of time.
        for conflict in sorted(open_, key=lambda c: (len(views[c.kind]), not c.is_direct)):
            if _view(conflict) not in views[conflict.kind]:
                yield _hold(conflict)
        yield from self._begins()
        last = {conflict.kind: conflict for conflict in self._conflicts.values()}
        yield from (_hold(conflict) for conflict in open_ if last[conflict.kind] is conflict)
        yield from self._splits()

    def _splits(self) -> Iterator[Hold]:
        """Yield one hold for each kind, between a thread's first use of a thing and another one.

        A hold before both has turned both around. Between them, as for two ranks that look for a
        file and then make it, is a third order. Last come those of a folder that the held thread
        replaces, and through which the other one passes.
        """
        first: dict[tuple[RankThread, RankThread, Thing], Conflict] = {}
        found: list[Conflict] = []
        plain = self._plain_holds()
        for pair, conflict in self._conflicts.items():
            threads = conflict.first.thread, conflict.second.thread
            begun = first.setdefault((*threads, conflict.use.thing), conflict)
            is_other = (begun.first.site, begun.use.verb) != (
                conflict.first.site,
                conflict.use.verb,
            )
            is_turned = pair in self._done and _hold(conflict) in plain
            if is_other and is_turned and conflict.use.verb != THROUGH:
                found.append(conflict)
        kinds: set[Kind] = set()
        for conflict in sorted(found, key=lambda conflict: not conflict.is_direct):
            if conflict.kind not in kinds:
                kinds.add(conflict.kind)
                yield _hold(conflict)

    def _other_holds(self) -> Iterator[Hold]:
        """Yield the holds of conflicts that are left: first of kinds with the fewest conflicts
        done, and of a kind first the one that is farthest from these."""
        places: Counter[Kind] = Counter()
        done: defaultdict[Kind, list[int]] = defaultdict(list)
        left: list[tuple[Kind, int, Hold]] = []
        plain = self._plain_holds()
        for pair, conflict in self._conflicts.items():
            kind = conflict.kind
            places[kind] += 1
            if pair in self._done:
                done[kind].append(places[kind])
            elif (hold := _hold(conflict)) in plain:
                left.append((kind, places[kind], hold))

        def distance(kind: Kind, place: int) -> int:
            after = bisect(done[kind], place)
            return min(abs(place - other) for other in done[kind][max(0, after - 1) : after + 1])

        left.sort(key=lambda each: (len(done[each[0]]), -distance(each[0], each[1])))
        yield from (hold for *_, hold in left)

    def _begins(self) -> list[Hold]:
        """The begins of all threads, if there are several: those that the test starts first."""
        holds = [hold for hold in self._plain_holds() if hold.point == BEGIN]
        if len(holds) < 2:
            return []
        return sorted(holds, key=lambda hold: (hold.thread.thread == 0, hold))

    def _pairs(self) -> Iterator[Schedule]:
        rated = []
        plain = self._plain_holds()
        occurrences: Counter[tuple[str, Kind]] = Counter()
        effects = set()
        for run in self._runs:
            if len(run.schedule) != 1 or (run.schedule[0], 0) not in run.moments:
                continue
            turned = [pair for pair in self._conflicts if run.has_turned(*pair)]
            effect = run.schedule[0].thread, *turned
            if effect in effects:
                continue
            effects.add(effect)
            for conflict in run.conflicts:
                is_new = _hold(conflict) not in plain
                if not (is_new or self._is_done(run.pair(conflict))):
                    continue  # its hold is to be tried alone
                schedule, still_turned = _with_second_hold(run, conflict, turned)
                if schedule and (still_turned or is_new):
                    same = run.schedule[0].point, conflict.kind
                    one_thread = len({hold.thread for hold in schedule}) == 1
                    rank = one_thread, not conflict.is_direct, occurrences[same]
                    rated.append((rank, conflict.kind, schedule))
                    occurrences[same] += 1
        # sorted() keeps the order of what is equal, here that of the runs.
        alone = self._untried_kinds(plain)
        for _, kind, schedule in sorted(rated, key=itemgetter(0)):
            if kind in alone:
                yield (alone[kind],)
            yield schedule
        begins = self._begins()
        if len(begins) > 2:
            yield from itertools.permutations(begins, 2)

    def _untried_kinds(self, plain: set[Hold]) -> dict[Kind, Hold]:
        """The first hold of each kind of which none was tried alone.

        An earlier hold may have turned the kind around together with others. To turn it around by
        itself may be enough, as where a thread must not see one of two files without the other.
        """
        tried = {run.schedule for run in self._runs}
        holds: defaultdict[Kind, list[Hold]] = defaultdict(list)
        for conflict in self._conflicts.values():
            if (hold := _hold(conflict)) in plain:
                holds[conflict.kind].append(hold)
        return {
            kind: own[0] for kind, own in holds.items() if not any((hold,) in tried for hold in own)
        }

    def _is_done(self, pair: _Pair) -> bool:
        return pair in self._done or pair[::-1] in self._done


class _HeldRun:
    """A run, and the conflicts that it has shown."""

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

    def pair(self, conflict: Conflict) -> _Pair:
        """The names of a conflict of this run."""
        return self.names[conflict.first], self.names[conflict.second]

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


_View: TypeAlias = tuple[RankThread, str, str, str]
"""What distinguishes two trials of one kind: the held thread, its line, and what both threads do
there, since a line may call a library that does many things."""


def _view(conflict: Conflict) -> _View:
    first, second = (event.point.partition(":")[0] for event in conflict[:2])
    return conflict.held.thread, conflict.first.site, first, second


def _hold(conflict: Conflict) -> Hold:
    """The hold that turns a conflict around."""
    held = conflict.held
    return Hold(held.thread, held.point, held.number)


def _swapped(conflict: Conflict) -> Conflict:
    """Return a conflict as it is in a run in which the second use came first."""
    first, second, use, other_use, _ = conflict
    return Conflict(second, first, other_use, use, second)


def _with_second_hold(
    run: _HeldRun, conflict: Conflict, turned: list[_Pair]
) -> tuple[Schedule, list[_Pair]]:
    """The hold of a run with one that turns a conflict of this run around.

    Also, of what the first hold has turned around, what two holds still do: if nothing is left,
    they show no order that the second does not show alone. No schedule if both holds are one.
    """
    hold, other = run.schedule[0], _hold(conflict)
    if hold == other:
        return (), []
    released, passed = run.moments[hold, 0], conflict.held.at
    is_back = conflict.second.thread == hold.thread and conflict.second.at >= released
    if hold.thread != other.thread and is_back:
        # Only after the first hold does the thread do what must come before the second. What the
        # other thread does from its hold on comes after the first hold as well.
        turned = [
            pair
            for pair in turned
            if pair[1][0].thread != other.thread or run.moments[pair[1]] < passed
        ]
        return (hold, other), turned
    return ((hold, other) if passed >= released else (other, hold)), turned
