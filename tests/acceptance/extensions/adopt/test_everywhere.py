"""``--ddp-everywhere=N``: suites for ``torchrun --nproc-per-node=N -m pytest``, unchanged."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.extensions.adopt.everywhere_examples import (
    AT_IMPORT,
    AT_NEED,
    BY_FIXTURE,
    IN_A_GROUP,
    PLACE,
)
from tests.acceptance.suite import Finished, Suite
from tests.environment import without_outer_run
from tests.warm import interpreter

WITHOUT_A_GROUP = """
    import pytest

    @pytest.mark.ddp(world_size=3)
    def test_with_a_mark_of_its_own(ddp, tmp_path):
        assert ddp.world_size == 3
        assert len(set(ddp.gather(tmp_path))) == 1

    def test_place():
        '''Nothing to see.

        >>> 1 + 1
        2
        '''
        import os

        assert os.environ["WORLD_SIZE"] == "2"
"""


@pytest.fixture(scope="module")
def at_need(new_suite: Callable[[], Suite]) -> Suite:
    suite = new_suite()
    suite.write("place.py", PLACE)
    suite.write("test_at_need.py", AT_NEED)
    suite.write("test_by_fixture.py", BY_FIXTURE.format(mark=""))
    return suite


@pytest.fixture(scope="module")
def needed(at_need: Suite) -> Finished:
    return at_need.run("--ddp-everywhere=2", "-W", "error::pytest_ddp.DdpWarning")


def test_a_suite_for_torchrun_passes_as_it_is(needed: Finished) -> None:
    needed.assert_outcomes(passed=10, skipped=1)


def test_as_under_torchrun(at_need: Suite) -> None:
    """What our own run is compared with.

    But for the group of a fixture, the second that is built: torch 2.13 hangs in that under
    torchrun, as its agent's store has what the first has left.
    """
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    pytest_of_each = [
        "-m",
        "pytest",
        "test_at_need.py",
        "-q",
        "-p",
        "no:ddp",
        "-p",
        "no:cacheprovider",
    ]
    ours = ("RANK", "WORLD_SIZE")
    env = {name: text for name, text in without_outer_run().items() if not name.startswith(ours)}
    done = interpreter.run([*command, *pytest_of_each], cwd=at_need.directory, env=env, timeout=600)
    assert done.stdout.count("8 passed, 1 skipped") == 2, done.stdout + done.stderr


@pytest.fixture(scope="module", params=[(), ("-n", "1", "--ddp-start-method=spawn")], ids=str)
def in_a_group(request: pytest.FixtureRequest, new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("conftest.py", AT_IMPORT)
    suite.write("test_in_a_group.py", IN_A_GROUP)
    return suite.run("--ddp-everywhere=3", *request.param, timeout=120)


def test_a_group_that_the_conftest_makes_at_its_import(in_a_group: Finished) -> None:
    """The conftest makes a new group on new ranks; that of the pytest process reaches no rank."""
    assert in_a_group["test_first"].verdict == "passed"
    failed = in_a_group["test_fails_on_one"]
    assert failed.phase("call").message == "rank 2: assert 2 != 2"
    assert in_a_group["test_dies"].verdict == "failed"
    assert "rank 1 exited with code 3" in in_a_group["test_dies"].text
    in_a_group.assert_outcomes(passed=3, failed=2)


def test_what_ranks_cannot_run_and_the_ini_file(suite: Suite) -> None:
    suite.write("test_it.py", WITHOUT_A_GROUP)
    found = suite.run("--doctest-modules", "-o", "ddp_everywhere=2")
    found.assert_outcomes(passed=3)


def test_a_group_of_a_module_fixture_is_not_left_behind(suite: Suite) -> None:
    mark = "pytestmark = pytest.mark.ddp(world_size=2, init=False)"
    suite.write("test_by_fixture.py", BY_FIXTURE.format(mark=mark))
    found = suite.run("-W", "error::pytest_ddp.DdpWarning")
    found.assert_outcomes(passed=2)
    assert not found.warnings


def test_a_wrong_number_is_refused(suite: Suite) -> None:
    suite.write("conftest.py", "raise AssertionError('too late')")
    found = suite.run("--ddp-everywhere=none")
    assert found.returncode == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: --ddp-everywhere=none: " in found.output
    assert "one machine takes a whole number of ranks from 1 to 64" in found.flat
