"""Phases that a rank keeps to itself until its test ends, and that outlive it on its page."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddp.protocol import buffered_reports
from pytest_ddp.protocol.buffered_reports import BufferedReports, RecoveredReports
from pytest_ddp.protocol.messages import Passed, Phase
from pytest_ddp.protocol.status_page import KEPT, PHASE, SIZE, StatusPage, framed, note_of, read
from tests.unit import handmade as made
from tests.unit.standings import code_line

KILLED = """
import os, signal, sys
from types import SimpleNamespace
from pytest_ddp.protocol.buffered_reports import BufferedReports as Kept
from pytest_ddp.protocol.status_page import StatusPage as Page
from tests.unit.handmade import report
from pytest_ddp.protocol.messages import Phase
part = SimpleNamespace(get_hookimpls=lambda: [])
hook = SimpleNamespace(pytest_report_to_serializable=part, pytest_report_from_serializable=part)
kept = Kept(Page(sys.argv[1]), SimpleNamespace(hook=hook))
kept.begin(7)
assert kept.take(report(Phase.SETUP, start=1e9 + 1 / 3, duration=0.1))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "page"


def config(*modules: str) -> Any:
    """The config of a session in which these modules have a part in how reports travel."""
    parts = [SimpleNamespace(function=SimpleNamespace(__module__=name)) for name in modules]
    of_pytest = SimpleNamespace(function=SimpleNamespace(__module__="_pytest.reports"))
    to = SimpleNamespace(get_hookimpls=lambda: [of_pytest])
    back = SimpleNamespace(get_hookimpls=lambda: [of_pytest, *parts])
    hook = SimpleNamespace(pytest_report_to_serializable=to, pytest_report_from_serializable=back)
    return SimpleNamespace(hook=hook)


def passed(phase: Phase, report: pytest.TestReport) -> Passed:
    times = (int(at * 1e9) for at in (report.start, report.stop, report.duration))
    return Passed(phase, *times)


def test_nothing_is_kept_before_the_first_test(path: Path) -> None:
    StatusPage(str(path))
    assert (
        buffered_reports.read(path)
        == buffered_reports.read(path.with_name("missing"))
        == RecoveredReports()
    )


def test_what_is_kept_is_read_as_it_was(path: Path) -> None:
    mine = BufferedReports(StatusPage(str(path)), config())
    mine.begin(3)
    assert buffered_reports.read(path) == RecoveredReports(3)
    reports = [made.report(phase, start=1e9 + 1 / 3, duration=1 / 7) for phase in Phase]
    for report in reports:
        assert mine.take(report)
    shown = tuple(passed(Phase(report.when), report) for report in reports)
    assert buffered_reports.read(path) == RecoveredReports(3, shown)
    assert mine.passed() == shown


def test_next_test_begins_with_nothing(path: Path) -> None:
    mine = BufferedReports(StatusPage(str(path)), config())
    mine.begin(3)
    mine.take(made.report(Phase.SETUP))
    mine.begin(4)
    assert buffered_reports.read(path) == RecoveredReports(4)
    assert mine.passed() == ()


def test_rank_is_killed(path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, path], cwd=os.getcwd(), check=False)
    assert killed.returncode == -9
    shown = buffered_reports.read(path)
    assert (shown.test, [one.phase for one in shown.passed]) == (7, [Phase.SETUP])
    assert shown.passed[0].start == int((1e9 + 1 / 3) * 1e9)


@pytest.mark.parametrize(
    "report",
    [
        made.FAILED,
        made.SKIPPED,
        made.XFAILED,
        made.XPASSED,
        made.report(Phase.CALL, sections={"Captured stdout call": "said"}),
        made.report(Phase.CALL, user_properties=[("name", "value")]),
        made.report(Phase.CALL, of_a_plugin=1),
        made.report(Phase.CALL, duration=math.nan),
    ],
    ids=["failed", "skipped", "xfailed", "xpassed", "output", "property", "attribute", "duration"],
)
def test_report_with_more_is_not_kept(path: Path, report: pytest.TestReport) -> None:
    mine = BufferedReports(StatusPage(str(path)), config())
    mine.begin(1)
    assert not mine.take(report)
    assert mine.passed() == buffered_reports.read(path).passed == ()


def test_report_of_another_class_is_not_kept(path: Path) -> None:
    class Other(pytest.TestReport):
        pass

    mine = BufferedReports(StatusPage(str(path)), config())
    mine.begin(1)
    plain = made.report(Phase.CALL)
    assert not mine.take(Other(**{k: v for k, v in vars(plain).items() if k != "_id"}, nodeid="a"))


def test_plugins_that_read_reports_get_them(path: Path) -> None:
    mine = BufferedReports(StatusPage(str(path)), config("some_plugin"))
    mine.begin(1)
    assert not mine.take(made.report(Phase.CALL))


@pytest.mark.parametrize("text", ["x", "1\nsetup", "1\nsetup 1 2 x", "1\nlunch 1 2 3"])
def test_page_that_a_test_has_written_into_shows_nothing(path: Path, text: str) -> None:
    StatusPage(str(path)).write(KEPT, framed(*text.split("\n")))
    assert buffered_reports.read(path) == RecoveredReports()


def test_areas_do_not_meet(path: Path) -> None:
    page = StatusPage(str(path))
    page.write(PHASE, note_of(("call", "step"), code_line("a.py:1 in f"), 1))
    BufferedReports(page, config()).begin(5)
    assert read(path).phase == ("call", "step")
    assert buffered_reports.read(path) == RecoveredReports(5)
    assert path.stat().st_size == SIZE
