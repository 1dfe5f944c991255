"""Ranks that break where no report can show it: in their last teardown, or between tests."""

from __future__ import annotations

import pytest

from tests.acceptance.suite import LOADFILE, Suite, flat

TEARDOWN = """
    import os
    import time

    import pytest

    @pytest.fixture(scope="session")
    def brittle():
        yield
        if os.environ["RANK"] == "1":
            {deed}  # here

    @pytest.mark.ddp(world_size=2)
    def test_with_it(ddp, brittle):
        pass

    @pytest.mark.ddp(world_size=2, isolate=True)
    def test_in_fresh_ranks(ddp):
        pass
"""

BETWEEN = """
    import os
    import signal
    import time
    from pathlib import Path

    import pytest
    import torch
    import torch.distributed as dist

    pids = Path(__file__).with_name("pids")

    @pytest.mark.ddp(world_size=2)
    def test_before(ddp):
        pids.with_suffix(f".{{ddp.rank}}").write_text(str(os.getpid()))

    def test_plain():
        for rank in {ranks}:
            os.kill(int(pids.with_suffix(f".{{rank}}").read_text()), signal.{signal})
        time.sleep({seconds})

    @pytest.mark.ddp(world_size={world_size})
    def test_after(ddp):
        dist.all_reduce(torch.ones(1))
"""


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("os._exit(0)", "The rank exited with code 0 before the end of its last teardown"),
        ("os.abort()", "The rank died of SIGABRT before the end of its last teardown"),
        ("time.sleep(600)", "The rank was killed: its last teardown took longer than 10 s"),
    ],
    ids=["exits", "aborts", "hangs"],
)
def test_a_broken_last_teardown_is_never_green(suite: Suite, deed: str, words: str) -> None:
    source = TEARDOWN.format(deed=deed)
    file = suite.write("test_teardown.py", source)
    finished = suite.run(*LOADFILE)
    finished.assert_outcomes(passed=2)
    assert finished.returncode == pytest.ExitCode.TESTS_FAILED
    shown = finished.output.partition("error outside of the tests")[2]
    assert flat(shown).count(words) == 1
    lines = file.read_text().splitlines()
    assert f"test_teardown.py:{1 + next(n for n, s in enumerate(lines) if '# here' in s)}" in shown


LEFT_ALONE = """
    import pytest
    import torch
    import torch.distributed as dist

    @pytest.fixture(scope="session")
    def together(ddp):
        dist.barrier()
        yield
        dist.barrier()

    @pytest.mark.ddp(world_size=2)
    def test_raises(ddp, together):
        assert ddp.rank == 0
        dist.all_reduce(torch.ones(1))

    @pytest.mark.ddp(world_size=2)
    def test_after(together):
        dist.barrier()
"""


def test_a_teardown_that_misses_a_stopped_rank_names_the_test(suite: Suite) -> None:
    suite.write("test_alone.py", LEFT_ALONE)
    finished = suite.run(*LOADFILE)
    finished.assert_outcomes(passed=1, failed=1)
    problem = flat(finished.output.partition("error outside of the tests")[2])
    when = "In the last teardown, after test_alone.py::test_raises had ended rank 0:"
    assert f"rank 1 {when}" in problem, problem
    assert "Connection closed by peer" in problem


@pytest.mark.parametrize("number", ["SIGKILL", "SIGSEGV"])
@pytest.mark.parametrize(
    ("ranks", "world_size", "seconds"),
    [
        ((0,), 1, 0.0),
        ((0, 1), 2, 0.0),
        ((1,), 3, 0.0),
        ((1,), 1, 0.5),
        ((0,), 2, 0.5),
        ((1,), 2, 0.5),
        ((0, 1), 3, 0.5),
    ],
)
def test_a_death_between_tests_is_reported_and_does_not_fail_the_next(
    suite: Suite, ranks: tuple[int, ...], number: str, world_size: int, seconds: float
) -> None:
    fields = {"ranks": ranks, "signal": number, "seconds": seconds, "world_size": world_size}
    suite.write("test_between.py", BETWEEN.format(**fields))
    finished = suite.run(*LOADFILE)
    finished.assert_outcomes(passed=3)
    assert finished.returncode == pytest.ExitCode.TESTS_FAILED
    shown = flat(finished.output.partition("error outside of the tests")[2])
    ends = [f"died of {number} between two tests, after test_between.py::test_before"]
    if not seconds and world_size != 2:
        # No test needs this pool any more, so the rank may be asked for its last teardown
        # before the kernel has ended it.
        ends.append(f"died of {number} before the end of its last teardown")
    assert any(end in shown for end in ends), shown


def test_a_rank_that_stands_still_is_no_death_between_tests(suite: Suite) -> None:
    """The test's own timeout ends it, once."""
    fields = {"ranks": (1,), "signal": "SIGSTOP", "seconds": 0.0, "world_size": 2}
    suite.write("test_between.py", BETWEEN.format(**fields))
    finished = suite.run("--ddp-timeout=5", *LOADFILE)
    finished.assert_outcomes(passed=2, error=1)
    assert "timed out after 5 s" in flat(finished["test_after"].text)
    assert "outside of the tests" not in finished.output
