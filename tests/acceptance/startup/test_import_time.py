"""What ranks import is no time of the first test; an import without an end is reported as such."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite, flat

LIMITED = """
    import os
    import time

    from pytest_ddp.session import {what}

    {what}.start_limit = lambda timeout: {seconds}
"""
SLOW = """
    import os
    import time

    import pytest

    if "RANK" in os.environ:
        time.sleep(6)

    @pytest.mark.ddp(world_size=2, timeout=5)
    def test_first(ddp):
        pass

    @pytest.mark.ddp(world_size=2, timeout=5)
    def test_second(ddp):
        pass
"""
WITHOUT_GROUP = """

    @pytest.mark.ddp(world_size=1, init=False, timeout=5)
    def test_without_group(ddp):
        pass
"""
HANGS = """
    import os
    import time

    import pytest

    if os.environ.get("RANK") == "1":
        time.sleep(600)

    @pytest.mark.ddp(world_size=2, timeout=1)
    def test_it(ddp):
        pass
"""
PARTS = """
    import os

    import pytest
    import torch
    import torch.distributed as dist

    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        if os.environ["RANK"] == "0":
            dist.barrier()
        else:
            dist.broadcast(torch.zeros(1), 0)
            dist.barrier()

    @pytest.mark.ddp(world_size=2, init=False)
    def test_it(ddp):
        pass
"""
SLOW_CALL = """
    import time

    import pytest

    @pytest.mark.ddp(world_size=2, timeout=1)
    def test_it(ddp):
        time.sleep(600)
"""


@pytest.fixture(scope="module")
def slow(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_a.py", SLOW + WITHOUT_GROUP)
    suite.write("test_b.py", SLOW)
    return suite.run(timeout=120)


@pytest.mark.parametrize("file", ["test_a.py", "test_b.py"])
@pytest.mark.parametrize("name", ["test_first", "test_second"])
def test_an_import_longer_than_the_test_may_last(slow: Finished, file: str, name: str) -> None:
    assert slow[f"{file}::{name}"].verdict == "passed"


def test_the_same_without_a_process_group(slow: Finished) -> None:
    assert slow["test_without_group"].verdict == "passed"


def test_an_import_without_an_end_has_a_text_of_its_own(suite: Suite) -> None:
    suite.write("conftest.py", LIMITED.format(what="run", seconds=5))
    suite.write("test_hangs.py", HANGS)
    result = suite.run()["test_it"]
    assert result.verdict == "error"
    message = next(report.message for report in result.reports if report.outcome == "failed")
    assert message == "the import of test_hangs.py has not ended after 5 s on rank 1"
    assert "test_hangs.py:8 in <module>" in flat(result.text)


def test_the_same_of_a_conftest(suite: Suite) -> None:
    hangs = '\n    if "RANK" in os.environ:\n        time.sleep(600)\n'
    suite.write("conftest.py", LIMITED.format(what="supervisor", seconds=20) + hangs)
    suite.write("test_it.py", SLOW_CALL)
    text = flat(suite.run()["test_it"].text)
    assert "the import of conftest.py has not ended after 20 s on ranks 0-1" in text


def test_the_clock_of_a_test_that_has_begun_is_its_own(suite: Suite) -> None:
    suite.write("test_it.py", SLOW_CALL)
    result = suite.run()["test_it"]
    assert result.phase("call").message.startswith("timed out after 1 s: ")


def test_an_import_that_can_never_end_is_reported_at_once(suite: Suite) -> None:
    suite.write("test_it.py", PARTS)
    result = suite.run()["test_it"]
    message = next(report.message for report in result.reports if report.outcome == "failed")
    assert message.startswith("mismatch: rank 0 waits in barrier #1 of the default group")
