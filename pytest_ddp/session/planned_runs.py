"""Several runs of one item, as a plugin plans them: pytest sees one item with one verdict.

A plan is a generator, since the next run often depends on the results so far. It yields a
:class:`PlannedRun`, is sent its :class:`RunResult`, and returns an :class:`ItemVerdict`.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pytest

from pytest_ddp.protocol.buffered_reports import is_subtest
from pytest_ddp.system.stdlib import traceback


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of a test: a full attempt, with a ``tmp_path`` and a timeout of its own."""

    name: str
    """The name of the run, which is shown beside the test while it runs."""
    item: pytest.Item | None = None
    """The ddp test to run, which may be deselected; None for the one of the plan."""
    sent: Mapping[str, Any] = field(default_factory=dict)
    """What plugins in the ranks get, by the name of the sender; laid over what
    ``pytest_ddp_attempt_begins`` returns."""
    seed_name: str | None = None
    """What the ranks' seeds are made of; None for the node id."""
    isolate: bool = False
    """Whether the run gets fresh ranks."""
    alters: str = ""
    """What the run changes in its ranks for good, in a word; tests without it do not run there."""


@dataclass(frozen=True, slots=True, eq=False)
class RunResult:
    """What a run has shown."""

    run: PlannedRun
    reports: tuple[pytest.TestReport, ...]
    """Setup, call and teardown, merged over all ranks."""
    sent: Mapping[int, Mapping[str, Any]]
    """What plugins in the ranks have returned from ``pytest_ddp_test_ended``, by rank; ranks that
    died or did not end are missing."""
    codes: tuple[str, ...]
    """The codes of the run's failures, such as ``DDP-001``."""


@dataclass(frozen=True, slots=True)
class ItemVerdict:
    """How the item ends: by the reports of one of its runs, by an error, or by a skip."""

    result: RunResult | None = None
    """The run whose reports are those of the item."""
    heading: str = ""
    """Lines above the text of a failure of that run; the first is shown in the short summary."""
    closing: str = ""
    """Lines below the text of a failure of that run."""
    error: str = ""
    """The text of an error in the item's set-up."""
    skip: str = ""
    """The reason for which the item is skipped."""


Runs: TypeAlias = Generator[PlannedRun, RunResult, ItemVerdict]


@dataclass(frozen=True, slots=True)
class RunPlan:
    """How often an item runs, and which run counts."""

    runs: Runs
    """Yields the runs one after another, and returns the verdict. It is closed if the session ends
    before."""
    reruns: bool = True
    """Whether plugins such as pytest-rerunfailures may run the item again, by a new plan."""


def carry_out(
    plan: RunPlan, run: Callable[[PlannedRun], RunResult], ends_session: Callable[[], bool]
) -> ItemVerdict:
    """Run what a plan yields, until it returns its verdict; its mistakes are errors of the item.

    Args:
        plan: of the item.
        run: makes a run.
        ends_session: whether the last run has ended the session; it is the last one then, and
            counts.
    """
    runs: Any = plan.runs
    if not isinstance(runs, Generator):
        return _mistake(f"is no generator: {runs!r}", "Call a function that yields PlannedRuns.")
    made: list[RunResult] = []
    with contextlib.closing(runs):
        while not (made and ends_session()):
            try:
                planned = runs.send(made[-1] if made else None)
            except StopIteration as end:
                return _checked(end.value, made)
            except Exception as error:
                frames = error.__traceback__ and error.__traceback__.tb_next
                lines = traceback.format_exception(type(error), error, frames)
                return _mistake(f"raised {type(error).__name__}: {error}", "".join(lines))
            if not isinstance(planned, PlannedRun):
                return _mistake(
                    f"yielded {planned!r}", "Each value that it yields is a PlannedRun."
                )
            made.append(run(planned))
    return ItemVerdict(made[-1])


def _checked(verdict: object, made: list[RunResult]) -> ItemVerdict:
    if not isinstance(verdict, ItemVerdict):
        return _mistake(f"returned {verdict!r}", "Return an ItemVerdict.")
    if verdict.error or verdict.skip or any(verdict.result is each for each in made):
        return verdict
    return _mistake(
        "returned a verdict without a result of its own runs",
        "Return ItemVerdict(result) with a result that `yield` has returned, or an error, or a "
        "skip.",
    )


def _mistake(what: str, fix: str) -> ItemVerdict:
    return ItemVerdict(error=f"the generator of pytest_ddp_plan_runs {what}\n\n{fix}")


def add_durations(
    reports: list[pytest.TestReport], others: list[RunResult], item: pytest.Item
) -> list[pytest.TestReport]:
    """The reports as those of the item, with the time of the other runs added to each phase."""
    spent: defaultdict[str | None, float] = defaultdict(float)
    for report in (r for other in others for r in other.reports if not is_subtest(r)):
        spent[report.when] += report.duration
    for report in reports:
        report.nodeid, report.location = item.nodeid, item.location
        report.keywords = dict.fromkeys(item.keywords, 1)
        report.duration += 0 if is_subtest(report) else spent[report.when]
    return reports
