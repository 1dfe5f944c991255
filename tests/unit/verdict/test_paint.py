"""Colour changes nothing but colour."""

from __future__ import annotations

import io

import pytest
from _pytest._io import TerminalWriter

from pytest_ddp.outcome.outcome import Hang, HangKind
from pytest_ddp.settings.options import Output
from pytest_ddp.verdict.merge import judge
from pytest_ddp.verdict.paint import paint
from tests.unit import handmade as made
from tests.unit.handmade import CRASHED, dead, failure, stopped, text

BOLD, RED, YELLOW, GREEN = "\x1b[1m", "\x1b[31m", "\x1b[33m", "\x1b[32m"


def shown(report: pytest.TestReport, *, colour: bool) -> str:
    stream = io.StringIO()
    writer = TerminalWriter(stream)
    writer.hasmarkup = colour
    report.toterminal(writer)
    return stream.getvalue()


def ddp_failure() -> pytest.TestReport:
    report = failure(made.passing(0), dead(stacks=CRASHED), stopped(2))
    report.keywords = {"ddp": 1}
    return report


def test_states_and_verdict_are_coloured() -> None:
    report = ddp_failure()
    paint([report])
    text = shown(report, colour=True)
    lines = text.splitlines()
    assert BOLD in lines[0]
    assert RED in lines[0]
    assert any("rank 0  " in line and GREEN in line and "passed" in line for line in lines)
    assert any("rank 1  " in line and RED in line and "died" in line for line in lines)
    assert any("rank 2  " in line and YELLOW in line and "stopped" in line for line in lines)
    assert any(line.startswith(f"{BOLD}> tests/test_made.py:14") for line in lines)


def test_without_colour_nothing_changes() -> None:
    plain = ddp_failure()
    painted = ddp_failure()
    paint([painted])
    assert shown(painted, colour=False) == shown(plain, colour=False)
    assert painted.longreprtext == plain.longreprtext


def test_other_tests_are_left_alone() -> None:
    report = ddp_failure()
    report.keywords = {}
    before = list(report.longrepr.reprtraceback.reprentries)  # type: ignore[union-attr]
    paint([report])
    assert report.longrepr.reprtraceback.reprentries == before  # type: ignore[union-attr]


@pytest.mark.parametrize("longrepr", [None, "words", ("path", 1, "reason")])
def test_failure_of_another_form_is_left_alone(longrepr: object) -> None:
    report = ddp_failure()
    report.longrepr = longrepr  # type: ignore[assignment]
    paint([report])
    assert report.longrepr == longrepr


def test_wide_lines_are_for_the_terminal_alone() -> None:
    hang = Hang(HangKind.FOR_EACH_OTHER, "" + "so it is, " * 12, (), ())
    ranks = stopped(0), made.passing(1)
    (report,) = (
        r for r in judge(made.run(*ranks, hang=hang), Output.FAILED, 160).reports if r.failed
    )
    sent = made.through_json(report)
    narrow = report.longreprtext
    paint([sent])
    assert narrow == text(*ranks, hang=hang)
    assert narrow.split() == sent.longreprtext.split()
    assert max(map(len, narrow.splitlines())) <= 80 < max(map(len, sent.longreprtext.splitlines()))
