"""When a wait ends by a timeout of its own, and what that means for the proof of a hang."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddp.deadlock.collectives import difference, needs_calls, out_of_step
from pytest_ddp.deadlock.prover import prove
from pytest_ddp.rank.groups.wait_timeouts import WaitTimeouts, left_of
from pytest_ddp.rank.operations.operation import Description, Issuer, Operation, Site
from pytest_ddp.rank.operations.table import BY_NAME
from pytest_ddp.system.stdlib import time
from tests.unit.standings import call, collective, count, ended, receive, stuck

ENDED = ended(count(0, 0, 1))


def test_wait_that_a_timeout_ends_in_time_is_no_hang() -> None:
    expiring = stuck(collective(1, 0, 1, ends_in=2.0))
    assert prove({0: expiring, 1: ENDED}, left=5.0) is None
    assert prove({0: expiring, 1: ENDED}, left=2.0) is not None
    assert prove({0: expiring, 1: ENDED}) is not None


def test_overdue_timeout_is_left_to_the_deadline() -> None:
    assert prove({0: stuck(collective(1, 0, 1, ends_in=-3.0)), 1: ENDED}, left=1.0) is None


def test_whoever_needs_a_rank_that_a_timeout_frees_is_not_stuck() -> None:
    mine, other = stuck(collective(1, 0, 1)), stuck(replace(receive(1, 0, 0, 1), ends_in=1.0))
    assert prove({0: mine, 1: other}, left=5.0) is None
    assert prove({0: mine, 1: other}) is not None


def test_group_on_which_a_wait_failed_is_not_compared() -> None:
    failed, other = count(1, 0, 1, group="3", what=1, failed=True), count(2, 0, 1, what=7)
    counts = {0: (failed, other), 1: (count(0, 0, 1, group="3"), other)}
    assert not needs_calls(counts)
    assert not difference(counts, {0: (call(1, group="3"),), 1: ()})
    assert out_of_step(counts)
    assert needs_calls({**counts, 1: (count(0, 0, 1, group="3"), count(2, 0, 1, what=8))})


# ------------------------------------------------------------------ how long a wait may take


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of day, as the one element of a list."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time_ns", lambda: int(now[0] * 1e9))
    return now


def receive_call(limit: float | None = None) -> Operation:
    site = Site(receive_call.__code__, 1)
    described = Description(BY_NAME["recv"], "recv", root=1, tag=0, site=site)
    made = Operation(None, "3", described, Issuer.PYTHON)
    made.limit = limit
    return made


def test_wait_is_taken_to_be_as_old_as_the_look_before_it(clock: list[float]) -> None:
    pace, waited = WaitTimeouts(), receive_call(limit=5.0)
    clock[0] = 101.0
    pace.look(None)
    clock[0] = 102.0
    pace.look(waited)
    assert pace.left(waited, None) == 4.0
    clock[0] = 104.0
    pace.look(waited)
    assert pace.left(waited, None) == 2.0
    assert pace.left(waited, 1.5) == 1.5


def test_next_wait_has_an_age_of_its_own(clock: list[float]) -> None:
    pace = WaitTimeouts()
    clock[0] = 103.0
    pace.look(receive_call(limit=5.0))
    clock[0] = 104.0
    waited = receive_call(limit=5.0)
    pace.look(waited)
    assert pace.left(waited, None) == 4.0


def test_wait_without_a_timeout_has_no_end(clock: list[float]) -> None:
    pace, waited = WaitTimeouts(), receive_call()
    pace.look(waited)
    assert pace.left(waited, None) is None
    assert pace.left_of_message(waited) is None  # no such group here


def test_collective_has_the_timeout_of_its_record(clock: list[float]) -> None:
    entry = {"timeout_ms": 2000, "time_created_ns": 99_500_000_000}
    assert left_of(entry) == pytest.approx(1.5)
    assert left_of({**entry, "timeout_ms": -1}) is None
    assert left_of({"time_created_ns": 0}) is None
