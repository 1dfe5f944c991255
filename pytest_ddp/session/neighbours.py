"""Handles ordinary tests around a ddp test, and plugins, in the pytest process."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
from _pytest.runner import CallInfo

from pytest_ddp.session.synthetic_reports import failed_call

if TYPE_CHECKING:
    from pytest_ddp.outcome.outcome import RunOutcome
    from pytest_ddp.verdict.diagnosis import Diagnosis


class Judged(NamedTuple):
    """Reports of a test after plugins have looked at what its ranks sent."""

    reports: list[pytest.TestReport]
    found: Diagnosis | None = None
    """Of the finding that made the call fail."""


def tear_down_ordinary(
    item: pytest.Item, next_item: pytest.Item | None, reports: list[pytest.TestReport]
) -> list[pytest.TestReport]:
    """Tear down fixtures that ordinary tests before a ddp test left up.

    pytest keeps the module of an ordinary test set up if the next test is in it. If the next test
    is a ddp test, which is set up only in ranks, and the last of its module, pytest does not tear
    the module down. An error in that is an error in the teardown of the ddp test, as for any last
    test of a module.
    """
    state = item.session._setupstate
    item.config.hook.pytest_ddp_test_finished(item=item, reports=reports)
    call = CallInfo.from_call(lambda: state.teardown_exact(next_item), when="teardown")
    if call.excinfo is None:
        return reports
    failed = pytest.TestReport.from_item_and_call(item, call)
    kept = [report for report in reports if report.when != "teardown" or report.failed]
    return [*kept, failed]


def with_findings(
    item: pytest.Item, outcome: RunOutcome, reports: list[pytest.TestReport]
) -> Judged:
    """Pass on what plugins in ranks have sent; with a finding of one, a passed call has failed."""
    sent = {rank.rank: rank.done.from_plugins for rank in outcome.ranks if rank.done is not None}
    if not any(sent.values()):
        return Judged(reports)
    findings = item.config.hook.pytest_ddp_findings(item=item, sent=sent)
    problem = "\n".join(finding for finding in findings if finding)
    if not problem or any(report.failed for report in reports):
        return Judged(reports)
    # Only findings pay for it.
    from pytest_ddp.protocol.messages import Phase  # noqa: PLC0415
    from pytest_ddp.verdict.diagnosis import Failure, Kind, diagnose_failure  # noqa: PLC0415
    from pytest_ddp.verdict.diagnosis_files import properties  # noqa: PLC0415

    verdict, *rest = problem.splitlines()
    notes = tuple(line.strip() for line in rest if line.strip())
    found = diagnose_failure(
        Failure(outcome, Phase.CALL, (), verdict, kind=Kind.FINDING, notes=notes)
    )
    failed = failed_call(item, problem)
    failed.user_properties += properties(found)
    return Judged([failed if _is_call(report) else report for report in reports], found)


def _is_call(report: pytest.TestReport) -> bool:
    from pytest_ddp.protocol.buffered_reports import is_subtest  # noqa: PLC0415 - only ddp tests pay for it

    return report.when == "call" and not is_subtest(report)
