"""Handles ordinary tests around a ddp test. Imported by every pytest run."""

from __future__ import annotations

import pytest
from _pytest.runner import CallInfo


def finish_test(
    item: pytest.Item, next_item: pytest.Item | None, reports: list[pytest.TestReport]
) -> list[pytest.TestReport]:
    """Tear down what ordinary tests left up, and show plugins the reports that pytest gets.

    Args:
        item: a ddp test that is over.
        next_item: the test after it.
        reports: its merged reports.

    Returns:
        the reports with an error of that teardown.
    """
    reports = _tear_down_ordinary(item, next_item, reports)
    item.config.hook.pytest_ddp_test_finished(item=item, reports=reports)
    return reports


def _tear_down_ordinary(
    item: pytest.Item, next_item: pytest.Item | None, reports: list[pytest.TestReport]
) -> list[pytest.TestReport]:
    """Tear down fixtures that ordinary tests before a ddp test left up.

    pytest keeps the module of an ordinary test set up if the next test is in it. If the next test
    is a ddp test, which is set up only in ranks, and the last of its module, pytest does not tear
    the module down. An error in that is an error in the teardown of the ddp test, as for any last
    test of a module.
    """
    state = item.session._setupstate
    ends_session: tuple[type[BaseException], ...] = (pytest.exit.Exception,)
    if not item.config.getoption("usepdb", False):
        ends_session += (KeyboardInterrupt,)
    try:
        call = CallInfo.from_call(
            lambda: state.teardown_exact(next_item), when="teardown", reraise=ends_session
        )
    except ends_session:
        for report in reports:  # the last chance: the verdict would be lost
            item.ihook.pytest_runtest_logreport(report=report)
        raise
    if call.excinfo is None:
        return reports
    failed = pytest.TestReport.from_item_and_call(item, call)
    kept = [report for report in reports if report.when != "teardown" or report.failed]
    return [*kept, failed]
