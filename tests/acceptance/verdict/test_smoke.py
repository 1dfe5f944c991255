"""Every kind of verdict, each once and in one run: what ``make quick`` looks at."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import LOADFILE, Finished, Suite

SOURCE = """
    import os
    import signal
    import time

    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=2)

    @pytest.fixture
    def breaks():
        raise OSError("no fixture")

    @pytest.fixture
    def breaks_after():
        yield
        raise OSError("no end")

    def test_passes(ddp):
        total = torch.tensor(float(ddp.rank))
        dist.all_reduce(total)
        assert total.item() == 1

    def test_fails_on_one(ddp):
        assert ddp.rank == 0, "only here"

    def test_skips():
        pytest.skip("nothing to see")

    def test_skips_on_one(ddp):
        if ddp.rank:
            pytest.skip("alone")

    @pytest.mark.xfail(reason="known")
    def test_is_expected_to_fail():
        assert False

    @pytest.mark.xfail(strict=True, reason="no more")
    def test_passes_unexpectedly():
        pass

    def test_has_a_broken_fixture(breaks):
        pass

    def test_has_a_broken_end(breaks_after):
        pass

    def test_dies(ddp):
        if ddp.rank:
            os.kill(os.getpid(), signal.SIGSEGV)
        dist.barrier()

    def test_leaves(ddp):
        if ddp.rank:
            os._exit(0)

    def test_waits_for_nobody(ddp):
        if ddp.rank:
            dist.barrier()

    def test_calls_another_collective(ddp):
        dist.all_gather([torch.ones(2)] * 2, torch.ones(2)) if ddp.rank else dist.barrier()

    @pytest.mark.ddp(world_size=2, timeout=1)
    def test_takes_too_long():
        time.sleep(600)

    @pytest.mark.ddp(world_size=[1, 2])
    def test_passes_after_all_that(ddp):
        dist.barrier()
"""


@pytest.fixture(scope="module")
def run(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_suite.py", SOURCE)
    return suite.run(*LOADFILE, timeout=120)


@pytest.mark.parametrize(
    ("name", "verdict", "text"),
    [
        ("test_passes", "passed", ""),
        ("test_fails_on_one", "failed", "only here"),
        ("test_skips", "skipped", "nothing to see"),
        ("test_skips_on_one", "failed", "alone"),
        ("test_is_expected_to_fail", "xfailed", "assert False"),
        ("test_passes_unexpectedly", "failed", "[XPASS(strict)]"),
        ("test_has_a_broken_fixture", "error", "no fixture"),
        ("test_has_a_broken_end", "passed+error", "no end"),
        ("test_dies", "failed", "SIGSEGV"),
        ("test_leaves", "failed", "exited with code 0"),
        ("test_waits_for_nobody", "failed", "barrier"),
        ("test_calls_another_collective", "failed", "all_gather"),
        ("test_takes_too_long", "failed", "timed out after 1 s"),
        ("test_passes_after_all_that[ws1]", "passed", ""),
        ("test_passes_after_all_that[ws2]", "passed", ""),
    ],
)
def test_verdict(run: Finished, name: str, verdict: str, text: str) -> None:
    assert run[name].verdict == verdict
    assert text in run[name].text


def test_counts(run: Finished) -> None:
    run.assert_outcomes(passed=4, failed=8, skipped=1, xfailed=1, error=2)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
