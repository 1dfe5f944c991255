"""The options and the mark's argument, the plans of explored tests, and their runs in ranks.

Imported by every pytest run: what plans is imported for the first explored test, and what records
and holds in a rank when that begins there.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddp.extending import on_rank
from pytest_ddp.extensions.explore import EXTENSION, options
from pytest_ddp.extensions.explore.options import (
    MARK_ARGUMENTS,
    RUNS,
    SETTINGS,
    TALLY,
    ExploreOptions,
)
from pytest_ddp.settings.mark import MarkArgument
from pytest_ddp.settings.marked_items import MARK
from pytest_ddp.settings.options import add_options
from pytest_ddp.settings.rules import option_error

if TYPE_CHECKING:
    from pytest_ddp.extensions.explore.ranks.explored_run import ExploredRun
    from pytest_ddp.rank.operations.stream import Operations
    from pytest_ddp.session.planned_runs import RunPlan
    from pytest_ddp.settings.plan import LaunchPlan

_OPTIONS = pytest.StashKey[ExploreOptions]()


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser, SETTINGS)


def pytest_ddp_mark_arguments() -> Mapping[str, MarkArgument]:
    return MARK_ARGUMENTS


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_OPTIONS] = options.read(config)


# ------------------------------------------------------------------ in the pytest process


def pytest_collection_finish(session: pytest.Session) -> None:
    config = session.config
    schedule = config.stash[_OPTIONS].schedule
    # In an xdist worker it would be an internal error: there the test fails with it.
    if not schedule or on_rank(config) or _is_worker(config):
        return
    if problem := _problem(session.items, schedule):
        raise option_error(problem)


def _problem(items: Sequence[pytest.Item], schedule: str) -> str:
    """Why the session is none for a schedule; or empty."""
    from pytest_ddp.extensions.explore.replays import problem  # noqa: PLC0415 - few need it

    return problem([item for item in items if MARK in item.stash], schedule)


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


@pytest.hookimpl(wrapper=True)
def pytest_ddp_plan_runs(
    item: pytest.Item, launch: LaunchPlan | None
) -> Generator[None, RunPlan | None, RunPlan | None]:
    others = yield
    schedule = item.config.stash[_OPTIONS].schedule
    runs: Any = item.stash[MARK].extra.get(EXTENSION, item.config.stash[_OPTIONS].runs)
    if not (runs or schedule):
        return others
    from pytest_ddp.extensions.explore import exploring  # noqa: PLC0415 - few need it

    if not schedule:
        return exploring.plan(item, launch, others, runs)
    problem = _problem(item.session.items, schedule) if _is_worker(item.config) else ""
    return exploring.plan_replay(item, launch, others, schedule, problem)


def pytest_ddp_findings(item: pytest.Item, sent: Mapping[int, Mapping[str, Any]]) -> str | None:
    runs = item.stash.get(RUNS, None)
    found: str | None = None if runs is None else runs.finding(sent)
    return found


def pytest_ddp_test_finished(item: pytest.Item, reports: Sequence[pytest.TestReport]) -> None:
    words = "" if (runs := item.stash.get(RUNS, None)) is None else runs.words
    for report in reports:
        if report.when == "call" and words:
            setattr(report, _WORDS, words)


_WORDS = "ddp_explored"
"""The attribute of a report that has the words on an explored test."""


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport,
) -> tuple[str, str, tuple[str, Mapping[str, bool]]] | None:
    words = getattr(report, _WORDS, "")
    if not words or report.outcome != "passed":
        return None
    return "passed", ".", (f"PASSED ({words})", {"green": True})


def pytest_sessionfinish(session: pytest.Session) -> None:
    tally = session.config.stash.get(TALLY, None)
    if tally is not None and _is_worker(session.config):
        session.config.workeroutput[_OF_WORKER] = tally.sent()  # type: ignore[attr-defined]


_OF_WORKER = "ddp_explore"


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if (sent := getattr(node, "workeroutput", {}).get(_OF_WORKER)) is not None:
        from pytest_ddp.extensions.explore.tally import tally_of  # noqa: PLC0415 - few need it

        tally_of(node.config).add(sent)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if (tally := config.stash.get(TALLY, None)) is not None:
        for line in tally.lines():
            terminalreporter.write_line(line)


# ------------------------------------------------------------------ in ranks

_operations: Operations | None = None
_run: ExploredRun | None = None


def pytest_ddp_operations(operations: Operations) -> None:
    global _operations
    _operations = operations


def pytest_ddp_fixture_attributes() -> Mapping[str, object]:
    return {"point": _point}


def _point(name: str) -> None:
    """A point of the test's own, at which the plugin may hold this thread.

    Args:
        name: of the point, for texts and schedules.

    Raises:
        ValueError: it is empty.
    """
    if not name.strip():
        raise ValueError(f"ddp.point({name!r}): a point needs a name that can be shown")
    if _run is not None:
        _run.user_point(name)


def pytest_ddp_test_begins(sent: Mapping[str, Any]) -> None:
    global _run
    if (data := sent.get(EXTENSION)) is not None and _operations is not None:
        from pytest_ddp.extensions.explore.ranks.explored_run import (  # noqa: PLC0415
            ExploredRun,
        )

        _run = ExploredRun(_operations, data)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    if _run is not None:
        _run.begin()


def pytest_ddp_test_ended() -> Mapping[str, Any]:
    global _run
    if _run is None:
        return {}
    run, _run = _run, None
    return {EXTENSION: run.end()}
