"""A resource limit that a test changes is that of no other test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite

SUITE = """
    import os
    import resource

    import pytest
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=2)


    def lower(files):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))


    def test_opens_no_more_files(ddp):
        lower(8)  # fewer than a rank has


    def test_makes_a_group(ddp):
        group = dist.new_group([0, 1])
        dist.barrier(group)
        dist.destroy_process_group(group)


    PIDS = []


    class TestFixture:
        @pytest.fixture(scope="class", autouse=True)
        def few(self):
            before = resource.getrlimit(resource.RLIMIT_NOFILE)
            lower(200)
            yield
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

        def test_has_its_limit(self):
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 200

        def test_has_it_still(self):
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 200
            PIDS.append(os.getpid())


    def test_the_ranks_are_kept_after_it(ddp):
        assert PIDS == [os.getpid()]
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 200
"""


@pytest.fixture(scope="module")
def finished(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_limits.py", SUITE)
    return suite.run()


def test_the_next_test_has_the_limit_from_before(finished: Finished) -> None:
    finished.assert_outcomes(passed=5)


def test_a_warning_names_the_limit(finished: Finished) -> None:
    (text,) = [text for text in finished.warnings if "RLIMIT" in text]
    assert "test_opens_no_more_files: changed RLIMIT_NOFILE (" in text
    assert " -> 8); restored" in text
