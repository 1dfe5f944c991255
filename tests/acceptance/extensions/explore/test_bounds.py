"""Holds that a bound ends: what fails then is no finding; and what is shown of a rank in a hold."""

from __future__ import annotations

import json

from tests.acceptance.suite import Suite, flat

LIMITS = """
    import time

    import pytest
    import torch.distributed as dist


    @pytest.mark.ddp(world_size=2, timeout=60)
    @pytest.mark.parametrize("case", ["one", "other"])
    def test_own_limit(ddp, tmp_path, case):
        path = tmp_path / "in"
        dist.barrier()
        began = time.monotonic()
        if ddp.rank == 0:
            path.write_text("x")
        else:
            time.sleep(0.3)
            while not path.exists():
                pass  # neither waits nor sleeps: the bound of two seconds ends a hold of rank 0
        dist.barrier()
        if time.monotonic() - began > 1.9:
            raise TimeoutError("too slow")


    @pytest.mark.ddp(world_size=1)
    @pytest.mark.parametrize("case", ["one", "other"])
    def test_alone(case):
        pass
"""

HELD = """
    import threading
    import time

    import pytest
    import torch.distributed as dist


    @pytest.mark.ddp(world_size=2, timeout=6)
    def test_held(ddp, tmp_path):
        if ddp.rank == 0:
            (tmp_path / "in").write_text("x")
            # It ends by itself, so rank 0 does not rest, and the hold lasts for two seconds.
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        dist.barrier()
        if ddp.rank == 1:
            time.sleep(4.6)
            (tmp_path / "in").read_text()
        dist.barrier()
"""

TIMEOUTS = """
    import threading
    import time

    import pytest
    import torch.distributed as dist


    @pytest.fixture
    def run(pytestconfig, ddp, request):
        runs = pytestconfig.rootpath / f"{request.node.name}{ddp.rank}"
        count = len(runs.read_text()) if runs.exists() else 0
        runs.write_text("." * (count + 1))
        dist.barrier()
        return count


    @pytest.mark.ddp(world_size=2, timeout=9)
    def test_after_a_hold(ddp, run, tmp_path):
        if ddp.rank == 0:
            (tmp_path / "in").write_text("x")  # held until rank 1 has slept and waits
            time.sleep(0 if run < 2 else 8)
        else:
            time.sleep(2.3)
            (tmp_path / "in").exists()
        dist.barrier()


    @pytest.mark.ddp(world_size=2, timeout=7)
    def test_in_a_hold(ddp, run, tmp_path):
        if ddp.rank == 0:
            # It ends by itself, so rank 0 does not rest.
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
            time.sleep(0.3)
            (tmp_path / "in").exists()
        else:
            time.sleep(0 if run < 2 else 5.5)
            (tmp_path / "in").write_text("x")
        dist.barrier()
"""


def test_an_expired_limit_after_a_bound_is_undecided_and_the_workers_counts_are_added(
    suite: Suite,
) -> None:
    suite.write("test_limits.py", LIMITS)
    run = suite.run("-n2", "-v", "--ddp-explore=3", extra=(), timeout=120)
    run.assert_outcomes(passed=4)
    assert {"[gw0]", "[gw1]"} <= set(run.output.split())
    assert "ddp: 2 tests explored with 2 holds, 2 of them ended by a bound, not because" in run.flat
    assert "ddp: 2 tests not explored: it has one rank\n" in run.output
    assert run.output.count("(explored: 1 conflict, not all orders, 1 undecided, 3 runs)") == 2
    for case in ("one", "other"):
        text = f"""\
ddp: undecided: test_limits.py::test_own_limit[{case}]
  ranks 0-1: TimeoutError: too slow
  (a bound ended a hold before, so a limit of the test may have expired)
  Replay: --ddp-schedule='0@open:in#1'
"""
        assert text in run.output


def test_a_rank_that_a_schedule_holds_is_shown_as_held_and_proves_no_deadlock(suite: Suite) -> None:
    suite.write("test_held.py", HELD)
    run = suite.run("--ddp-schedule=1@open:in#1", "--ddp-trace=traces", timeout=120)
    text = flat(run["test_held"].text)
    assert "timed out after 6 s: rank 1 has not finished call, rank 0 waits" in text
    assert "rank 1 runs call: held before open(in) a schedule holds it" in text
    assert "deadlock" not in text
    (trace,) = (run.directory / "traces").glob("*.json")
    events = json.loads(trace.read_text())["traceEvents"]
    (held,) = [each for each in events if each["name"] == "held before open(in)"]
    assert (held["pid"], held["ph"]) == (1, "X")


def test_a_timeout_of_the_test_in_or_after_a_long_hold_is_undecided(suite: Suite) -> None:
    suite.write("test_timeouts.py", TIMEOUTS)
    run = suite.run("-n2", "-v", "--ddp-explore=3", extra=(), timeout=120)
    run.assert_outcomes(passed=2)
    for name in ("after", "in"):
        assert (
            f"""\
ddp: undecided: test_timeouts.py::test_{name}_a_hold
"""
            in run.output
        )
    assert "(holds took much of its time, so that may be no race)" in run.flat
