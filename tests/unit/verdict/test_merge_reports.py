"""What a merged report carries beside its verdict."""

from __future__ import annotations

from pytest_ddp.outcome.outcome import Ending
from pytest_ddp.protocol.messages import Phase
from tests.unit import handmade as made
from tests.unit.handmade import (
    FAILED,
    XFAILED,
    call_of,
    merged,
)

SETUP, CALL, TEARDOWN = Phase


def test_identity_of_the_test() -> None:
    for report in merged(made.passing(0), made.passing(1)):
        assert report.nodeid == made.NODEID
        assert report.location == ("tests/test_made.py", 9, "test_made")
        assert report.keywords == {"test_made": 1, "ddp": 1}


def test_times_span_all_ranks() -> None:
    early = made.report(CALL, start=made.START + 1, duration=2.0)
    late = made.report(CALL, start=made.START + 1.5, duration=4.0)
    report = call_of(merged(made.passing(0, early), made.passing(1, late)))
    assert report.duration == 4.0
    assert (report.start, report.stop) == (made.START + 1, made.START + 5.5)


def test_times_of_a_lost_rank() -> None:
    """A hang lasted as long as the controller waited for it."""
    lost = made.lost_in_call(1, Ending.STOPPED, at=30.0)
    report = call_of(merged(made.passing(0), lost))
    assert report.duration == 29.5
    assert report.stop == made.START + 30.0


def test_times_without_any_report() -> None:
    setup, teardown = merged(made.rank(0, ending=Ending.EXITED, returncode=1, at=3.0))
    assert (setup.start, setup.stop, setup.duration) == (made.START, made.START + 3.0, 3.0)
    assert (teardown.start, teardown.stop, teardown.duration) == (
        made.START + 3.0,
        made.START + 3.0,
        0.0,
    )


def test_report_without_times_does_not_count() -> None:
    """A rank makes one of an interrupt, with start and stop at zero."""
    interrupted = made.failed("raise KeyboardInterrupt", start=0, duration=0)
    report = call_of(merged(made.passing(0, interrupted), made.passing(1)))
    assert report.start == made.START
    assert report.duration == 0.5


def test_user_properties_once() -> None:
    calls = [
        made.report(CALL, user_properties=[("loss", 0.5), ("sizes", [1, 2])]),
        made.report(CALL, user_properties=[("loss", 0.25), ("sizes", [1, 2])]),
    ]
    report = call_of(merged(*(made.passing(r, call) for r, call in enumerate(calls))))
    assert report.user_properties == [("loss", 0.5), ("sizes", [1, 2]), ("loss", 0.25)]


def test_attributes_of_users_hooks_are_kept() -> None:
    calls = [made.report(CALL, extras=["a"]), made.report(CALL, extras=["b"], extra_of_rank_1=1)]
    report = call_of(merged(*(made.passing(r, call) for r, call in enumerate(calls))))
    assert report.extras == ["a"]
    assert report.extra_of_rank_1 == 1


def test_expectation_of_one_rank_is_no_attribute_of_a_failure() -> None:
    report = call_of(merged(made.passing(0, XFAILED), made.passing(1, FAILED)))
    assert not hasattr(report, "wasxfail")
