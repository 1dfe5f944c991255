"""The runs of one explored test, in the pytest process: which come, and what they amount to.

1. The schedule with which it failed last time, if there is one.
2. Two plain runs, which are recorded. A test that does not pass twice is tried with new ranks for
   each run, as it may use up a fixture; one that passes and fails in turn is red.
3. Schedules that :mod:`~pytest_ddp.extensions.explore.trials` chooses, until one fails, none is
   left, or the test has run as often as it may.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pytest

from pytest_ddp.extensions.explore import EXTENSION, replays, words
from pytest_ddp.extensions.explore.options import RUNS
from pytest_ddp.extensions.explore.ranks.accesses import Access, Thing, ThingKind
from pytest_ddp.extensions.explore.ranks.board import Board, Turn, size
from pytest_ddp.extensions.explore.replays import Ends, KeptFailure
from pytest_ddp.extensions.explore.run_events import BEGIN, Event, RankThread, Threads
from pytest_ddp.extensions.explore.schedule import Hold, Schedule, parse_schedule, schedule_text
from pytest_ddp.extensions.explore.tally import Tally, tally_of
from pytest_ddp.extensions.explore.trials import Exploration
from pytest_ddp.session.planned_runs import ItemVerdict, PlannedRun, RunPlan, RunResult, Runs
from pytest_ddp.settings.plan import LaunchPlan
from pytest_ddp.system import tempfiles
from pytest_ddp.system.stdlib import os
from pytest_ddp.verdict import codes
from pytest_ddp.verdict.rank_failure import first_line, message_of

_PLAIN = 2
_AGAIN = 3
"""Plain runs with new ranks of a test that has not passed twice."""
_NEAR = 0.5
"""Share of the test's timeout from which on a hold may be the reason that it ran out."""

Made: TypeAlias = Generator[PlannedRun, RunResult, RunResult]


def plan(
    item: pytest.Item, launch: LaunchPlan | None, others: RunPlan | None, runs: int
) -> RunPlan | None:
    """Return the runs of a test; if it is not explored, those of another plugin, or None for one
    run."""
    if launch is None or launch.skip is not None:
        return others
    if reason := _why_not(launch, others):
        tally_of(item.config).not_explored[reason] += 1
        return others
    made = item.stash[RUNS] = TestRuns(item, launch)
    return RunPlan(made.explore(runs), reruns=False)


def plan_replay(
    item: pytest.Item,
    launch: LaunchPlan | None,
    others: RunPlan | None,
    schedule: str,
    problem: str,
) -> RunPlan | None:
    """The run with the schedule of the command line."""
    if launch is None or launch.skip is not None:
        return others
    if reason := _why_not(launch, others):
        problem = f"--ddp-schedule={schedule!r}: {item.nodeid} cannot be explored: {reason}."
    if problem:
        return RunPlan(_error(problem))
    made = item.stash[RUNS] = TestRuns(item, launch)
    return RunPlan(made.replay(schedule), reruns=False)


def _error(text: str) -> Runs:
    yield from ()
    return ItemVerdict(error=text)


def _why_not(launch: LaunchPlan, others: RunPlan | None) -> str:
    if others is not None:
        return "it has several runs of its own"
    if launch.nodes:
        return "its ranks are on several machines"
    if launch.devices is not None:
        return "its ranks have GPUs"
    return "it has one rank" if launch.world_size < 2 else ""


class TestRuns:
    """The runs of one test."""

    __test__ = False

    def __init__(self, item: pytest.Item, launch: LaunchPlan) -> None:
        self._item = item
        self._launch = launch
        self._exploration = Exploration()
        self._plain: list[bool] = []
        """Whether each run without a hold has passed."""
        self._isolate = False
        self._made = 0
        self._sites: dict[Hold, str] = {}
        """The line of each hold's point."""
        self._seconds = 0.0
        """Seconds that the longest plain run took."""
        self._replayed: Schedule = ()
        """The schedule whose points must be reached, or the test fails."""
        self._board: Board | None = None
        self.words = ""
        """What ``-v`` shows beside a green test."""

    @property
    def _tally(self) -> Tally:
        return tally_of(self._item.config)

    # ------------------------------------------------------------------ plans

    def replay(self, text: str) -> Runs:
        """Yield one run, with this schedule, and return the verdict."""
        schedule = self._replayed = parse_schedule(text)
        kept = replays.kept(self._item)
        ends = kept.ends if kept is not None and kept.schedule == schedule_text(schedule) else None
        result = yield from self._run("replay", schedule, ends)
        if not self._any_reached(schedule):
            return ItemVerdict(result)
        heading = words.heading(schedule, self._sites, {}, "")
        return ItemVerdict(result, heading=heading, closing=words.replay_line(schedule))

    def explore(self, most: int) -> Runs:
        """Yield up to ``most`` runs, and return the verdict."""
        if (kept := replays.kept(self._item)) is not None:
            schedule = parse_schedule(kept.schedule)
            result = yield from self._run("failed before", schedule, kept.ends)
            if _failed(result):
                plain = yield from self._run("plain", ())
                if _passed(plain):
                    return self._found(schedule, result, most)
                return self._not_explored(plain)
            replays.keep(self._item, None)
        first = yield from self._run("plain", ())
        if not _passed(first):
            return self._not_explored(first)
        second = yield from self._run("plain again", ())
        if not _passed(second):
            verdict = yield from self._try_new_ranks(first, second)
            if verdict is not None:
                return verdict
        return (yield from self._try_schedules(first, most))

    def _try_new_ranks(
        self, first: RunResult, failed: RunResult
    ) -> Generator[PlannedRun, RunResult, ItemVerdict | None]:
        """Run the test several times with new ranks; returns None if it always passes, else its
        verdict."""
        self._isolate = True
        for _ in range(_AGAIN):
            result = yield from self._run("plain, new ranks", ())
            if not _passed(result):
                failed = result
        isolated = self._plain[-_AGAIN:]
        if all(isolated):
            return None
        if not any(isolated):
            return self._not_explored(first, "it passes once")
        return ItemVerdict(
            failed, heading=words.flaky_heading(self._plain.count(False), len(self._plain))
        )

    def _try_schedules(self, first: RunResult, most: int) -> Runs:
        undecided = 0
        while self._made < most and (schedule := self._exploration.next_schedule()) is not None:
            name = f"{self._made + 1} of {most}"
            result = yield from self._run(name, schedule)
            if not _failed(result):
                continue
            if not self._any_reached(schedule):
                self._plain.append(False)
                heading = words.flaky_heading(self._plain.count(False), len(self._plain))
                return ItemVerdict(result, heading=heading)
            is_timeout = self._is_late_timeout(schedule, result)
            if is_timeout or self._has_expired(schedule):
                test, message = self._item.nodeid, _first_line(result)
                text = words.undecided(test, schedule, message, is_timeout=is_timeout)
                self._tally.undecided.append(text)
                undecided += 1
                continue
            return self._found(schedule, result, most)
        self._tally.explored += 1
        kinds, open_kinds = self._exploration.kinds, self._exploration.open_kinds
        self.words = words.explored(kinds, open_kinds, undecided, self._made)
        return ItemVerdict(first)

    def _found(self, schedule: Schedule, result: RunResult, most: int) -> ItemVerdict:
        text = schedule_text(schedule)
        ends = [_rows(self._board, place) for place in range(len(schedule))]
        replays.keep(self._item, KeptFailure(text, ends))
        self._tally.explored += 1
        others = words.other_runs(self._made, most, self._plain.count(True))
        turned = self._exploration.turned(schedule)
        heading = words.heading(schedule, self._sites, turned, others)
        return ItemVerdict(result, heading=heading, closing=words.replay_line(schedule))

    def _not_explored(self, result: RunResult, reason: str = "") -> ItemVerdict:
        self._tally.not_explored[reason or _outcome(result)] += 1
        return ItemVerdict(result)

    # ------------------------------------------------------------------ a run

    def _run(self, name: str, schedule: Schedule, ends: Ends | None = None) -> Made:
        descriptor = tempfiles.create("pytest-ddp explore")
        try:
            os.ftruncate(descriptor, size(self._launch.world_size))
            path = f"/proc/{os.getpid()}/fd/{descriptor}"
            sent = {
                "board": path,
                "holds": [_row(schedule, place, ends) for place in range(len(schedule))],
                "begin": BEGIN,
                "timeout": self._launch.timeout,
                "root": str(self._item.config.rootpath),
                "own_tmp_path": self._launch.own_tmp_path,
            }
            self._board = Board(path, 0, self._launch.world_size)
            result = yield PlannedRun(
                name, sent={EXTENSION: sent}, isolate=self._isolate, alters=EXTENSION
            )
        finally:
            os.close(descriptor)
        self._made += 1
        threads = _threads(result)
        if schedule:
            turns = self._turns(schedule)
            self._tally.holds += sum(turn is not Turn.COMING for turn in turns)
            self._tally.expired += turns.count(Turn.EXPIRED)
        else:
            self._plain.append(_passed(result))
            self._seconds = max(self._seconds, sum(report.duration for report in result.reports))
        self._exploration.ran(schedule, threads)
        self._sites.update(
            (Hold(event.thread, event.point, event.number), event.site)
            for events in threads
            for event in events
            if event.point
        )
        return result

    def finding(self, sent: Mapping[int, Mapping[str, Any]]) -> str | None:
        """Why the running test must not pass: a point of its schedule was not reached."""
        missing = [
            hold
            for place, hold in enumerate(self._replayed)
            if self._turn(place) is Turn.COMING and hold.thread.rank in sent
        ]
        if not missing:
            return None
        hold = missing[0]
        counts = sent[hold.thread.rank].get(EXTENSION, {}).get("counts", ())
        passed: dict[str, int] = next(
            (names for number, names in counts if number == hold.thread.thread), {}
        )
        return words.not_reached(hold, passed.get(hold.point, 0))

    def _any_reached(self, schedule: Schedule) -> bool:
        return any(turn is not Turn.COMING for turn in self._turns(schedule))

    def _turns(self, schedule: Schedule) -> list[Turn]:
        """How far each hold of a schedule is."""
        return [self._turn(place) for place in range(len(schedule))]

    def _turn(self, place: int) -> Turn:
        assert self._board is not None
        return self._board.turn(place)

    def _has_expired(self, schedule: Schedule) -> bool:
        return Turn.EXPIRED in self._turns(schedule)

    def _is_late_timeout(self, schedule: Schedule, result: RunResult) -> bool:
        """Whether the test ran out of time, and may have because a hold was long, and not by a
        race."""
        assert self._board is not None
        held = sum(self._board.seconds(place) for place in range(len(schedule)))
        # A hold that had not ended by then began so late that its bound had not come either.
        still_held = Turn.HELD in self._turns(schedule)
        is_late = still_held or held + self._seconds > _NEAR * self._launch.timeout
        return is_late and codes.TIMEOUT in result.codes


def _row(schedule: Schedule, place: int, ends: Ends | None) -> list[Any]:
    hold = schedule[place]
    until = ends[place] if ends is not None and place < len(ends) else None
    phase = words.held_phase(hold)
    return [place, *hold.thread, hold.point, hold.number, phase, until]


def _rows(board: Board | None, place: int) -> list[list[int]]:
    found = {} if board is None else board.progress_at_end(place)
    return [[rank, thread, count] for (rank, thread), count in found.items()]


def _threads(result: RunResult) -> Threads:
    return tuple(_each_thread(result))


def _each_thread(result: RunResult) -> Iterator[tuple[Event, ...]]:
    for rank, sent in result.sent.items():
        for number, rows in sent.get(EXTENSION, {}).get("threads", ()):
            yield tuple(_event(RankThread(rank, number), row) for row in rows)


def _event(thread: RankThread, row: Sequence[Any]) -> Event:
    at, point, number, site, accesses, gives, takes = row
    uses = tuple(
        Access(Thing(ThingKind(kind), name), changes, verb)
        for (kind, name), changes, verb in accesses
    )
    return Event(thread, at, point, number, site, uses, tuple(gives), tuple(takes))


def _first_line(result: RunResult) -> str:
    return next(
        (first_line(message_of(each.longrepr)) for each in result.reports if each.failed), ""
    )


def _failed(result: RunResult) -> bool:
    return any(report.failed for report in result.reports)


def _passed(result: RunResult) -> bool:
    """Whether a test has passed in a run; False if it was skipped, or is expected to fail."""
    return bool(result.reports) and all(
        report.passed and not hasattr(report, "wasxfail") for report in result.reports
    )


def _outcome(result: RunResult) -> str:
    if _failed(result):
        return "it fails"
    is_expected = any(hasattr(report, "wasxfail") for report in result.reports)
    return "it is expected to fail" if is_expected else "it is skipped"
