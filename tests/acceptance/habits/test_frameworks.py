"""unittest and pytest-asyncio inside ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import LOADFILE, Finished, Suite

INI = "[pytest]\nasyncio_default_fixture_loop_scope = function\n"

UNITTEST = """
    import os
    import unittest

    import pytest
    import torch.distributed as dist

    @pytest.mark.ddp(world_size=2)
    class TestCase(unittest.TestCase):
        seen = []

        @classmethod
        def setUpClass(cls):
            cls.seen.append("class")

        def setUp(self):
            self.seen.append("up")
            self.addCleanup(self.seen.append, "clean")

        @pytest.fixture(autouse=True)
        def _inject(self, ddp):
            self.ddp = ddp

        def test_a(self):
            self.assertEqual(dist.get_rank(), self.ddp.rank)
            self.assertEqual(self.seen, ["class", "up"])

        def test_b(self):
            self.assertEqual(self.seen, ["class", "up", "clean", "up"])

        @unittest.skip("not now")
        def test_skipped(self):
            raise AssertionError

        @unittest.expectedFailure
        def test_expected_failure(self):
            self.assertEqual(1, 2)

        def test_failing(self):
            self.assertEqual(self.ddp.rank, 0)

    @pytest.mark.ddp(world_size=2)
    class TestAsync(unittest.IsolatedAsyncioTestCase):
        async def test_coroutine(self):
            self.assertTrue(dist.is_initialized())
"""

ASYNCIO = """
    import asyncio

    import pytest
    import pytest_asyncio
    import torch.distributed as dist

    pytestmark = [pytest.mark.ddp(world_size=2), pytest.mark.asyncio]

    @pytest_asyncio.fixture
    async def value(ddp):
        await asyncio.sleep(0)
        yield 10 + ddp.rank
        await asyncio.sleep(0)

    async def test_async(ddp, value):
        await asyncio.sleep(0)
        assert value == 10 + dist.get_rank()

    async def test_async_failing(ddp):
        await asyncio.sleep(0)
        assert ddp.rank == 0, "async failure"
"""

PASSING = [
    "TestCase::test_a", "TestCase::test_b", "TestAsync::test_coroutine", "test_async",
]  # fmt: skip
FAILING = {
    "TestCase::test_failing": "AssertionError: 1 != 0",
    "test_async_failing": "async failure",
}


@pytest.fixture(scope="module")
def run(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("pytest.ini", INI)
    suite.write("test_cases.py", UNITTEST)
    suite.write("test_async.py", ASYNCIO)
    return suite.run(*LOADFILE)


@pytest.mark.parametrize("name", PASSING)
def test_passes(run: Finished, name: str) -> None:
    assert run[name].verdict == "passed", run[name].text


@pytest.mark.parametrize("name", FAILING)
def test_fails(run: Finished, name: str) -> None:
    result = run[name]
    assert result.verdict == "failed", result.text
    assert FAILING[name] in result.text
    assert "rank 1 of 2 failed in call" in result.text


def test_unittest_skip_and_expected_failure(run: Finished) -> None:
    assert run["TestCase::test_skipped"].verdict == "skipped"
    assert "not now" in run["TestCase::test_skipped"].text
    assert run["TestCase::test_expected_failure"].verdict == "xfailed"
