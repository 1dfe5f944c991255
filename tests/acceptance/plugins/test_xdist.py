"""Ends, collection and output of ddp tests on workers of pytest-xdist."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.acceptance.suite import SPAWNED, Finished, Suite

SPAWN = ("--ddp-start-method=spawn",) if SPAWNED else ()
WORKERS = ("-n", "2", "--dist=loadfile")

# ---------------------------------------------------------------- pytest.exit

EXITS = """
    import pytest

    @pytest.mark.ddp(world_size=2)
    def test_before(ddp):
        pass

    @pytest.mark.ddp(world_size=2)
    def test_exits(ddp):
        if ddp.rank == 1:
            pytest.exit("the data are gone", returncode=7)

    @pytest.mark.ddp(world_size=2)
    def test_never(ddp):
        pass
"""


@pytest.fixture(scope="module")
def exited(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_exits.py", EXITS)
    suite.write("test_other.py", "import pytest\n\n@pytest.mark.ddp\ndef test_other(ddp): pass\n")
    return suite.run(*WORKERS, extra=SPAWN)


def test_exit_in_a_rank_ends_the_session(exited: Finished) -> None:
    assert exited["test_before"].verdict == "passed"
    assert "test_exits" not in exited
    assert "test_never" not in exited
    assert exited.returncode == pytest.ExitCode.INTERRUPTED, exited.tail()


def test_exit_in_a_rank_is_reported_with_its_reason(exited: Finished) -> None:
    assert "Interrupted: pytest.exit in a rank: the data are gone" in exited.flat
    assert "Traceback" not in exited.output, exited.tail()


# ---------------------------------------------------------------- collection

RANDOM = """
    import os

    import pytest

    # The same on all workers, which xdist asks for, and something else in their ranks.
    SIDE = "rank" if "RANK" in os.environ else "worker"

    @pytest.mark.ddp(world_size=2)
    @pytest.mark.parametrize("side", [SIDE])
    def test_differs(ddp, side):
        pass

    @pytest.mark.ddp(world_size=2)
    def test_found(ddp):
        pass
"""


@pytest.fixture(scope="module")
def random(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_random.py", RANDOM)
    return suite.run(*WORKERS, extra=SPAWN)


def test_a_test_that_ranks_cannot_find_is_an_error_with_the_reason(random: Finished) -> None:
    differs = random["test_differs[worker]"]
    assert differs.verdict == "error"
    text = " ".join(differs.text.split())
    assert "Collection differs between two processes" in text
    assert "2 tests from test_random.py, but not this one" in text
    assert random.returncode == pytest.ExitCode.TESTS_FAILED


def test_a_test_beside_one_that_ranks_cannot_find_passes(random: Finished) -> None:
    assert random["test_found"].verdict == "passed"


# ---------------------------------------------------------------- output

TALKS = """
    import os
    import sys

    import pytest

    @pytest.mark.ddp(world_size=2)
    def test_talks(ddp):
        print("x" * 100_000)
        os.write(1, b"\\xff\\xfe no text\\n")
        os.write(2, b"an error\\n")
        sys.stdout.flush()

    @pytest.mark.ddp(world_size=2)
    def test_talks_and_fails(ddp):
        print("said by", ddp.rank)
        assert ddp.rank == 0, "only this"
"""


@pytest.fixture(scope="module", params=["-s", "--capture=fd"])
def talked(request: pytest.FixtureRequest, new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    for side in ("left", "right"):
        suite.write(f"test_{side}.py", TALKS.replace("test_talks", f"test_{side}"))
    return suite.run(*WORKERS, request.param, extra=SPAWN)


def test_what_ranks_print_is_not_taken_for_words_of_the_worker(talked: Finished) -> None:
    """A worker's standard output is its line to xdist."""
    talked.assert_outcomes(passed=2, failed=2)
    assert "INTERNALERROR" not in talked.output
    assert not re.search("crashed|Not properly terminated", talked.output)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_failure_is_reported_whatever_is_captured(talked: Finished, side: str) -> None:
    assert "only this" in talked[f"test_{side}_and_fails"].text


# ---------------------------------------------------------------- the last teardown

LATE = """
    import pytest

    @pytest.fixture(scope="session")
    def brittle():
        yield
        raise RuntimeError("brittle session broke")

    @pytest.mark.ddp(world_size=2)
    def test_late(ddp, brittle):
        pass

    def test_plain():
        pass  # A worker sees one test ahead, and cannot know whether a ddp test follows this.
"""


def test_an_error_after_the_last_report_names_its_ranks(suite: Suite) -> None:
    suite.write("test_late.py", LATE)
    done = suite.run("-n", "1", extra=SPAWN)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert re.search(
        r"error outside of the tests =+\nranks 0-1\n\nTraceback .*brittle session broke",
        done.stdout,
        re.DOTALL,
    ), done.tail()
