"""Reports of tests that never reached a rank."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_ddp.session.synthetic_reports import failed_without_ranks, skipped_without_ranks

Make = Callable[[pytest.Item, str], list[pytest.TestReport]]


@pytest.mark.parametrize("make", [skipped_without_ranks, failed_without_ranks])
def test_report_is_of_the_item_and_has_no_call(make: Make, request: pytest.FixtureRequest) -> None:
    setup, teardown = make(request.node, "2 GPUs are needed")
    assert (setup.when, teardown.when, teardown.outcome) == ("setup", "teardown", "passed")
    for report in (setup, teardown):
        assert report.nodeid == request.node.nodeid
        assert report.location == request.node.location
        assert "parametrize" in report.keywords
        assert report.duration == 0


def test_skip_points_to_the_test(request: pytest.FixtureRequest) -> None:
    setup, _ = skipped_without_ranks(request.node, "2 GPUs are needed")
    path, line, _ = request.node.location
    assert setup.skipped
    assert setup.longrepr == (path, line + 1, "Skipped: 2 GPUs are needed")


def test_failure_shows_all_lines_and_sums_up_with_the_first(request: pytest.FixtureRequest) -> None:
    setup, _ = failed_without_ranks(request.node, "the host died\nIt said:\n  oh no\n\n")
    path, line, _ = request.node.location
    assert setup.failed
    assert setup.longreprtext == "the host died\nIt said:\n  oh no"
    crash = setup.longrepr.reprcrash  # type: ignore[union-attr]
    assert (crash.path, crash.lineno, crash.message) == (path, line + 1, "the host died")


def test_reports_survive_the_way_to_an_xdist_worker(request: pytest.FixtureRequest) -> None:
    for report in failed_without_ranks(request.node, "the host died"):
        again = pytest.TestReport._from_json(report._to_json())
        assert (again.outcome, again.longreprtext) == (report.outcome, report.longreprtext)
