"""What plugins find when all ranks have passed: when that fails the test, and how it is shown."""

from __future__ import annotations

from typing import Any

import pytest
from _pytest.reports import TestReport

from pytest_ddp.outcome.outcome import Finding
from pytest_ddp.protocol.messages import EXPECTS_OTHER, Phase
from pytest_ddp.settings.options import Output
from pytest_ddp.verdict.diagnosis import Kind, is_doubtful
from pytest_ddp.verdict.merge import judge
from pytest_ddp.verdict.representation import WIDTH
from tests.unit import handmade as made
from tests.unit.handmade import (
    FAILED,
    KNOWN,
    SKIPPED,
    STRICT,
    XFAILED,
    XPASSED,
    call_of,
    verdict,
    words,
)

FOUND = "found by a plugin\n    in its own layout,  two spaces\n  Fix: so."
OTHER: dict[str, Any] = {EXPECTS_OTHER: True}


def _found(*calls: TestReport | None) -> list[TestReport]:
    return made.merged(
        *(made.passing(n, call) for n, call in enumerate(calls)), findings=((FOUND,),)
    )


def test_a_finding_fails_the_call_and_keeps_its_layout() -> None:
    call = call_of(_found(None, None))
    assert (call.outcome, verdict(call)) == ("failed", "found by a plugin")
    assert call.longreprtext.rstrip() == FOUND


def test_long_lines_are_wrapped_on_the_screen_alone() -> None:
    """The summary, --ddp-report and programs have whole sentences."""
    verdict_, note = ("a finding " * 12).strip(), ("its reason " * 12).strip()
    finding = f"{verdict_}\n  {note}\n    at  test_made.py:7"
    outcome = made.run(made.passing(0), made.passing(1), findings=((finding,),))
    found = judge(outcome, Output.FAILED)
    (diagnosis,), call = found.diagnoses, call_of(found.reports)
    assert (diagnosis.verdict, verdict(call)) == (verdict_, verdict_)
    assert diagnosis.notes == (note, "at  test_made.py:7")
    lines = call.longreprtext.rstrip().splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert [line[:5] for line in lines] == ["a fin", "  a f", "  its", "  its", "    a"]


OF_UNITTEST = made.report(Phase.CALL, "failed", "Failed: Unexpected success")


@pytest.mark.parametrize(("call", "reason"), [(XPASSED, KNOWN), (STRICT, KNOWN), (OF_UNITTEST, "")])
def test_it_is_the_failure_that_is_expected(call: TestReport, reason: str) -> None:
    report = call_of(_found(call, call))
    assert (report.outcome, report.wasxfail) == ("skipped", reason)
    assert report.longreprtext.rstrip() == FOUND


@pytest.mark.parametrize(
    "call",
    [
        made.report(Phase.CALL, wasxfail="known", **OTHER),
        made.report(Phase.CALL, "failed", "[XPASS(strict)] known", **OTHER),
    ],
)
def test_it_is_no_failure_of_another_type(call: TestReport) -> None:
    report = call_of(_found(call, call))
    assert (report.outcome, hasattr(report, "wasxfail")) == ("failed", False)
    assert report.longreprtext.rstrip() == FOUND


@pytest.mark.parametrize("call", [FAILED, SKIPPED, XFAILED])
def test_a_test_that_has_not_passed_stays_as_it_is(call: TestReport) -> None:
    plain = made.merged(made.passing(0, call), made.passing(1, call))
    assert words(_found(call, call)) == words(plain)
    assert "found by" not in call_of(_found(call, call)).longreprtext


def test_findings_of_several_plugins_are_one_text_with_the_code_of_the_first() -> None:
    of_plugins = (
        (Finding("the first", "DDP-012", (0, 1), (("at", "/a.py:7"),), fix="so."), "a string"),
        (Finding("the second", "DDP-010", consequence="It hangs."),),
    )
    found = judge(made.run(made.passing(0), made.passing(1), findings=of_plugins), Output.FAILED)
    assert (found.diagnoses[0].code, found.diagnoses[0].verdict) == (
        "DDP-012",
        "the first (ranks 0-1)",
    )
    assert call_of(found.reports).longreprtext.splitlines() == [
        "the first (ranks 0-1)",
        "  at  /a.py:7",
        "  Fix: so.",
        "",
        "a string",
        "the second",
        "  It hangs.",
        "",
        "DDP-012: python -m pytest_ddp explain DDP-012",
    ]


def test_for_programs_its_lines_are_notes() -> None:
    outcome = made.run(made.passing(0), made.passing(1), findings=((FOUND,),))
    (diagnosis,) = judge(outcome, Output.FAILED).diagnoses
    assert (diagnosis.kind, diagnosis.code) == (Kind.FINDING, "")
    assert diagnosis.notes == ("in its own layout,  two spaces", "Fix: so.")
    assert not is_doubtful(outcome, [diagnosis])
