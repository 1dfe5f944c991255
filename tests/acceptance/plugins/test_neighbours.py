"""ddp tests beside pytest-xdist and pytest-timeout."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.acceptance.suite import EXTRA_ARGS, SPAWNED, UNDER_XDIST, Finished, Suite

SPAWN = ("--ddp-start-method=spawn",) if SPAWNED else ()
LOCAL = SPAWN if UNDER_XDIST else EXTRA_ARGS

# ---------------------------------------------------------------- pytest-xdist

MEETING = """
    import json
    import os
    from pathlib import Path

    import pytest
    import torch
    import torch.distributed as dist

    MEETING = Path(os.environ["MEETING"])
    ME, OTHER = {names}

    def meet(ddp):
        # Opening a FIFO waits for the other side: from here on both workers run a test.
        if ddp.rank == 0:
            for name in sorted((ME, OTHER)):
                with (MEETING / name).open("wb" if name == ME else "rb"):
                    pass
        ddp.barrier()

    def record(ddp, name, **facts):
        facts |= {{"rank": ddp.rank, "side": ME, "worker": os.environ["PYTEST_XDIST_WORKER"]}}
        (MEETING / f"{{name}} {{ME}} {{ddp.rank}}.json").write_text(json.dumps(facts))

    @pytest.mark.ddp(world_size=2)
    def test_meets(ddp, tmp_path, tmp_path_factory):
        meet(ddp)
        record(
            ddp, "meets", pid=os.getpid(), port=os.environ["MASTER_PORT"], tmp_path=str(tmp_path),
            run_id=os.environ["TORCHELASTIC_RUN_ID"], base=str(tmp_path_factory.getbasetemp()),
        )
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2.0
        meet(ddp)

    @pytest.mark.ddp(world_size=2, init=False)
    def test_meets_without_group(ddp):
        meet(ddp)
        dist.init_process_group()
        record(ddp, "own", port=os.environ["MASTER_PORT"])
        meet(ddp)
        total = torch.ones(1)
        dist.all_reduce(total)
        dist.destroy_process_group()
        assert total.item() == 2.0

    @pytest.mark.ddp(world_size=2)
    def test_fails(ddp):
        assert ddp.rank == 0, "a failure on a worker"

    @pytest.mark.ddp(world_size=2)
    def test_dies(ddp):
        if ddp.rank == 1:
            os._exit(3)
        dist.barrier()

    @pytest.mark.ddp(world_size=[1, 3])
    def test_passes(ddp, worker_id):
        assert worker_id == os.environ["PYTEST_XDIST_WORKER"]

    def test_plain():
        pass
"""


@pytest.fixture(scope="module")
def meeting(new_suite: Callable[[], Suite]) -> Suite:
    suite = new_suite()
    suite.write("test_left.py", MEETING.format(names='"left", "right"'))
    suite.write("test_right.py", MEETING.format(names='"right", "left"'))
    return suite


@pytest.fixture(scope="module")
def met(meeting: Suite) -> Finished:
    """Two workers that are sure to run their ddp tests at the same time."""
    directory = meeting.directory / "meeting"
    directory.mkdir()
    for side in ("left", "right"):
        os.mkfifo(directory / side)
    env = {"MEETING": str(directory), "TMPDIR": str(meeting.directory)}
    arguments = ("-n", "2", "--dist=loadfile", "--ddp-timeout=60")
    return meeting.run(*arguments, env=env, extra=SPAWN)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("test_meets", "passed"),
        ("test_meets_without_group", "passed"),
        ("test_fails", "failed"),
        ("test_dies", "failed"),
        ("test_passes[ws1]", "passed"),
        ("test_passes[ws3]", "passed"),
        ("test_plain", "passed"),
    ],
)
def test_verdicts_on_workers(met: Finished, side: str, name: str, verdict: str) -> None:
    result = met.results[f"test_{side}.py::{name}"]
    assert result.verdict == verdict, result.text
    phases = [report.when for report in result.reports]
    assert phases == ["setup", "call", "teardown"]


def records(finished: Finished, name: str) -> list[dict[str, Any]]:
    files = (finished.directory / "meeting").glob(f"{name} *.json")
    return [json.loads(file.read_text()) for file in sorted(files)]


@pytest.mark.parametrize("fact", ["port", "tmp_path", "run_id", "worker"])
def test_workers_share_nothing(met: Finished, fact: str) -> None:
    """Each fact is common to the ranks of one worker and foreign to the other's."""
    found = records(met, "meets")
    assert len(found) == 4
    by_side = {side: {r[fact] for r in found if r["side"] == side} for side in ("left", "right")}
    assert [len(values) for values in by_side.values()] == [1, 1]
    assert by_side["left"] != by_side["right"]


def test_each_rank_has_its_own_process_and_base(met: Finished) -> None:
    found = records(met, "meets")
    assert len({record["pid"] for record in found}) == 4
    assert len({record["base"] for record in found}) == 4


def test_own_groups_use_different_ports(met: Finished) -> None:
    found = records(met, "own")
    assert len({(record["side"], record["port"]) for record in found}) == 2
    assert len({record["port"] for record in found}) == 2


@pytest.mark.parametrize("distribution", ["load", "worksteal", "each"])
def test_ways_of_distribution(new_suite: Callable[[], Suite], distribution: str) -> None:
    suite = new_suite()
    suite.write(
        "test_many.py",
        """
        import pytest
        import torch
        import torch.distributed as dist

        @pytest.fixture(scope="session")
        def wide():
            yield

        @pytest.mark.ddp(world_size=2)
        @pytest.mark.parametrize("number", range(6))
        def test_number(ddp, wide, number):
            total = torch.ones(1)
            dist.all_reduce(total)
            assert total.item() == 2.0
        """,
    )
    times = 2 if distribution == "each" else 1
    finished = suite.run("-n", "2", f"--dist={distribution}", extra=SPAWN)
    assert len(finished.results) == 6
    assert {len(result.reports) for result in finished.results.values()} == {3 * times}
    assert {report.outcome for r in finished.results.values() for report in r.reports} == {"passed"}
    assert finished.returncode == pytest.ExitCode.OK


def test_stop_at_first_failure_on_workers(new_suite: Callable[[], Suite]) -> None:
    suite = new_suite()
    suite.write(
        "test_stop.py",
        """
        import pytest

        @pytest.mark.ddp(world_size=2)
        @pytest.mark.parametrize("number", range(400))
        def test_number(ddp, number):
            assert number != 1, "stop here"
        """,
    )
    finished = suite.run("-n", "2", "-x", extra=SPAWN)
    assert finished["test_number[1]"].verdict == "failed"
    assert len(finished.results) < 400
    assert finished.returncode == 2


# ---------------------------------------------------------------- pytest-timeout

HANGS = """
    import threading

    import pytest
    import torch
    import torch.distributed as dist

    def wait_for_nobody():
        threading.Event().wait()

    def reduce_alone():
        dist.all_reduce(torch.ones(1))

    def hang(ddp):
        wait_for_nobody() if ddp.rank == 1 else reduce_alone()

    {mark_signal}
    @pytest.mark.ddp(world_size=2)
    def test_hangs(ddp):
        hang(ddp)

    @pytest.mark.ddp(world_size=2)
    def test_next(ddp):
        assert dist.get_world_size() == len(ddp.gather(None)) == 2

    @pytest.fixture
    def hanging(ddp):
        yield
        hang(ddp)

    {mark_thread}
    @pytest.mark.ddp(world_size=2)
    def test_hangs_in_teardown(hanging):
        pass

    def test_plain():
        pass

    @pytest.mark.ddp(world_size=2)
    def test_last(ddp):
        pass
"""
MARKS = {
    "mark_signal": "@pytest.mark.timeout(3, method='signal')",
    "mark_thread": "@pytest.mark.timeout(3, method='thread')",
}
NO_MARKS = dict.fromkeys(MARKS, "")
LIMITS = {
    "marks": (MARKS, ()),
    "signal": (NO_MARKS, ("--timeout=3", "--timeout-method=signal")),
    "thread": (NO_MARKS, ("--timeout=3", "--timeout-method=thread")),
    "xdist": (MARKS, ("-n", "2", "--dist=loadfile")),
    "xdist signal": (NO_MARKS, ("-n", "2", "--timeout=3", "--timeout-method=signal")),
    "xdist thread": (NO_MARKS, ("-n", "2", "--timeout=3", "--timeout-method=thread")),
    "own": (NO_MARKS, ("--ddp-timeout=3",)),
}


@pytest.fixture(scope="module", params=LIMITS)
def limited(request: pytest.FixtureRequest, new_suite: Callable[[], Suite]) -> Finished:
    marks, arguments = LIMITS[request.param]
    if "-n" not in arguments:
        arguments = (*arguments, *LOCAL)
    suite = new_suite()
    suite.write("test_hangs.py", HANGS.format(**marks))
    return suite.run(*arguments, extra=SPAWN, timeout=120)


def test_a_hang_is_bounded(limited: Finished) -> None:
    assert limited["test_hangs"].verdict == "failed", limited.tail()
    assert limited["test_hangs_in_teardown"].verdict == "passed+error", limited.tail()
    for name in ("test_hangs", "test_hangs_in_teardown"):
        assert 2.5 < limited[name].duration < 20, limited[name].duration


@pytest.mark.parametrize("name", ["test_next", "test_plain", "test_last"])
def test_the_tests_after_a_hang_pass(limited: Finished, name: str) -> None:
    assert limited[name].verdict == "passed", limited[name].text
    assert len(limited.results) == 5


@pytest.mark.parametrize("name", ["test_hangs", "test_hangs_in_teardown"])
def test_stacks_of_every_rank(limited: Finished, name: str) -> None:
    text = limited[name].text
    assert "3 s" in text or "3.0 s" in text
    for rank, function in ((0, "reduce_alone"), (1, "wait_for_nobody")):
        assert f"rank {rank}" in text
        assert len(re.findall(rf"^> .* in {function}$", text, re.MULTILINE)) == 1, text


def test_the_controller_lives_on(limited: Finished) -> None:
    assert limited.returncode == pytest.ExitCode.TESTS_FAILED
    assert "crashed" not in limited.output  # what xdist says of a worker that is gone
    assert "~ Stack of" not in limited.output  # what pytest-timeout prints before it exits


@pytest.mark.parametrize("method", ["signal", "thread"])
def test_time_before_the_ranks_run_does_not_count(suite: Suite, method: str) -> None:
    """The first ddp test waits for host and ranks; that is no time of its own."""
    suite.write("conftest.py", "import sys, time\nif 'torch' in sys.modules: time.sleep(3)\n")
    suite.write(
        "test_first.py",
        """
        import pytest

        @pytest.mark.ddp(world_size=2)
        def test_first(ddp):
            assert ddp.gather(ddp.rank) == [0, 1]
        """,
    )
    finished = suite.run("--timeout=2", f"--timeout-method={method}")
    finished.assert_outcomes(passed=1)
    assert finished.duration > 3


def test_a_timeout_does_not_reach_a_test_that_is_in_time(suite: Suite) -> None:
    suite.write(
        "test_fast.py",
        """
        import pytest

        @pytest.mark.timeout(30)
        @pytest.mark.ddp(world_size=2, timeout=20)
        def test_fast(ddp):
            assert ddp.rank in (0, 1)

        @pytest.mark.timeout(0)
        @pytest.mark.ddp(world_size=2, timeout=1)
        def test_own_limit(ddp):
            ddp.gather(1) if ddp.rank else __import__("threading").Event().wait()
        """,
    )
    finished = suite.run("--timeout=60")
    assert finished["test_fast"].verdict == "passed"
    assert finished["test_own_limit"].verdict == "failed"
    assert finished["test_own_limit"].duration < 15
