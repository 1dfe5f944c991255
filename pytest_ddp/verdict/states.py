"""The result of a phase on one rank in pytest's terms: passed, skipped, xfailed ...; or lost."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import pytest

from pytest_ddp.evidence.outcome import RankOutcome
from pytest_ddp.verdict.trouble import lost_phase, message_of
from pytest_ddp.wire.protocol import Phase

_STRICT = "[XPASS(strict)]"
_UNEXPECTED_SUCCESS = ("Unexpected success", "Failed: Unexpected success")
"""Messages of ``unittest.expectedFailure``, which has no marker for a strict XPASS."""


class State(enum.Enum):
    """The result of a phase on one rank; the value is the predicate of a sentence on the rank."""

    PASSED = "passed"
    XPASSED = "passed, although expected to fail"
    XPASSED_STRICT = "passed, although it must fail"
    XFAILED = "failed as expected"
    SKIPPED = "skipped"
    FAILED = "failed"
    LOST = "did not report"


@dataclass(frozen=True, slots=True)
class Part:
    """One phase on one rank."""

    rank: RankOutcome
    phase: Phase
    state: State
    report: pytest.TestReport | None

    @property
    def reason(self) -> str:
        """Why it was skipped, or why a failure was expected; empty for other states."""
        if self.state is State.SKIPPED and self.report is not None:
            return message_of(self.report.longrepr).removeprefix("Skipped: ")
        return self.expectation.removeprefix("reason: ")

    @property
    def expectation(self) -> str:
        """pytest's ``wasxfail``: the reason of the mark or the call; empty without one."""
        if self.state is State.XPASSED_STRICT and self.report is not None:
            return message_of(self.report.longrepr).removeprefix(_STRICT).strip()
        return str(getattr(self.report, "wasxfail", ""))

    def __str__(self) -> str:
        return f"{self.state.value} ({self.reason})" if self.reason else self.state.value


def state_of(report: pytest.TestReport) -> State:
    """The meaning of the report's outcome together with its attribute ``wasxfail``."""
    expected = hasattr(report, "wasxfail")
    if report.passed:
        return State.XPASSED if expected else State.PASSED
    if report.skipped:
        return State.XFAILED if expected else State.SKIPPED
    message = message_of(report.longrepr)
    if message.startswith(_STRICT) or message in _UNEXPECTED_SUCCESS:
        return State.XPASSED_STRICT
    return State.FAILED


def part_of(rank: RankOutcome, phase: Phase) -> Part | None:
    """The phase on a rank; None if it neither reported nor owes a report."""
    timed = rank.reports.get(phase)
    if timed is not None:
        return Part(rank, phase, state_of(timed.report), timed.report)
    return Part(rank, phase, State.LOST, None) if lost_phase(rank) is phase else None
