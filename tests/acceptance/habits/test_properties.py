"""Property tests of the real Hypothesis on ranks."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite

SUITE = """
    import unittest

    import pytest
    import torch
    import torch.distributed as dist
    from hypothesis import HealthCheck, assume, example, given, note, reject, settings
    from hypothesis import strategies as st

    pytestmark = pytest.mark.ddp(world_size=2)
    SEEN = []


    def reduced(n):
        tensor = torch.full((1 + n % 7,), n)
        dist.all_reduce(tensor)
        return tensor[0].item()


    @given(st.integers(0, 1000))
    def test_collectives(n):
        assert reduced(n) == 2 * n


    @given(n=st.integers(0, 1000))
    def test_assumptions(ddp, n):
        assume(n % 3)
        if n % 5 == 0:
            reject()
        assert reduced(n) == 2 * n


    @settings(max_examples=17)
    @given(n=st.integers())
    def test_counted(n):
        SEEN.append(n)


    def test_count(ddp):
        assert ddp.gather(SEEN) == [SEEN] * 2
        assert len(SEEN) == 17


    def test_one_rank_imports_more(ddp):
        if ddp.rank == 0:
            import constants


    @given(st.integers(), st.text(), st.lists(st.floats()), st.data())
    def test_same_examples(ddp, n, text, floats, data):
        drawn = repr((n, text, floats, data.draw(st.integers())))
        assert ddp.gather(drawn) == [drawn] * 2


    @given(n=st.integers(0, 1000), data=st.data())
    def test_one_rank_fails(ddp, n, data):
        bound = data.draw(st.integers(50, 60), label="bound")
        note(f"noted {n}")
        assert reduced(n) == 2 * n
        assert ddp.rank == 0 or n <= bound


    @given(n=st.integers(0, 1000))
    def test_one_rank_fails_before_its_collective(ddp, n):
        if ddp.rank == 1 and n > 50:
            pytest.fail("too much")
        reduced(n)


    @given(n=st.integers(0, 1000))
    def test_all_ranks_fail(n):
        assert reduced(n) <= 100


    @example(n=4321)
    @example(n=-1)
    @given(n=st.integers(0, 1000))
    def test_explicit(ddp, n):
        note(f"noted {n}")
        assert reduced(n) == 2 * n
        assert ddp.rank == 0 or n != 4321


    @example(n=-1).xfail(raises=AssertionError)
    @given(n=st.integers(0, 1000))
    def test_expected_failure(n):
        assert reduced(n) >= 0


    @pytest.mark.parametrize("step", [1, 2])
    @given(n=st.integers(0, 1000))
    def test_parametrized(ddp, n, step):
        assert reduced(n) == 2 * n
        assert step == 1 or n <= 100


    @pytest.mark.ddp(world_size=[1, 3])
    @given(n=st.integers(0, 1000))
    def test_sizes(ddp, n):
        assert ddp.gather(n) == [n] * ddp.world_size


    @given(n=st.integers())
    def test_fixture_that_examples_share(ddp, tmp_path, n):
        pass


    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(n=st.integers())
    def test_fixture_that_examples_may_share(ddp, tmp_path, n):
        pass


    class TestCase(unittest.TestCase):
        @given(n=st.integers(0, 1000))
        def test_method(self, n):
            assert reduced(n) == 2 * n


    @pytest.mark.asyncio
    @given(n=st.integers(0, 1000))
    async def test_coroutine(ddp, n):
        assert reduced(n) == 2 * n
        assert ddp.rank == 0 or n <= 100


    def test_after(ddp):
        assert ddp.gather(ddp.rank) == [0, 1]
"""
CONSTANTS = "NUMBERS = [" + ", ".join(str(10_000_019 * n) for n in range(1, 400)) + "]\n"

DRAWS = """
    import pytest
    from hypothesis import given, seed, settings
    from hypothesis import strategies as st

    pytestmark = pytest.mark.ddp(world_size=1)


    @given(st.integers())
    def test_plain(n):
        print("plain", n)


    @seed(7)
    @given(st.integers())
    def test_seed(n):
        print("seed", n)


    @settings(derandomize=True)
    @given(st.integers())
    def test_derandomized(n):
        print("derandomized", n)
"""
FAILING = re.compile(r"(Failing test case|Falsifying example): (\w+)\(")
"""What Hypothesis writes above the arguments of an example; its words have changed."""


@pytest.fixture(scope="module")
def run(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("constants.py", CONSTANTS)
    suite.write("test_suite.py", SUITE)
    return suite.run()


@pytest.mark.parametrize(
    "name",
    [
        "test_collectives",
        "test_assumptions",
        "test_expected_failure",
        "test_parametrized[1]",
        "test_sizes[ws1]",
        "test_sizes[ws3]",
        "test_fixture_that_examples_may_share",
        "TestCase::test_method",
        "test_after",
    ],
)
def test_passes(run: Finished, name: str) -> None:
    assert run[name].verdict == "passed", run[name].text


@pytest.mark.parametrize("name", ["test_counted", "test_count", "test_same_examples"])
def test_all_ranks_run_the_same_examples(run: Finished, name: str) -> None:
    assert run[name].verdict == "passed", run[name].text


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("test_one_rank_fails", "assert ddp.rank == 0 or n <= bound"),
        ("test_one_rank_fails_before_its_collective", 'pytest.fail("too much")'),
        ("test_coroutine", "assert ddp.rank == 0 or n <= 100"),
    ],
)
def test_failure_on_one_rank(run: Finished, name: str, line: str) -> None:
    result = run[name]
    assert result.verdict == "failed"
    found = FAILING.findall(result.text)
    assert [test for _, test in found] == [name], result.text
    assert int(re.findall(r"^E +n=(-?\d+),", result.text, re.MULTILINE)[0]) > 50
    assert re.search(r"\brank 1\b", result.text), result.text
    # Run again on this rank alone, it would have failed somewhere else.
    assert re.findall(r"^> +(.*)", result.text, re.MULTILINE)[-1] == line, result.text


def test_notes_and_draws_of_the_failing_example(run: Finished) -> None:
    text = run["test_one_rank_fails"].text
    (number,) = re.findall(r"^E +n=(\d+),", text, re.MULTILINE)
    assert re.findall(r"^E +noted (\d+)", text, re.MULTILINE) == [number], text
    assert len(re.findall(r"^E +Draw 1 \(bound\): (?:5\d|60)$", text, re.MULTILINE)) == 1, text


@pytest.mark.parametrize("name", ["test_all_ranks_fail", "test_parametrized[2]"])
def test_failure_on_all_ranks_is_shown_once(run: Finished, name: str) -> None:
    result = run[name]
    assert result.verdict == "failed"
    assert len(FAILING.findall(result.text)) == 1, result.text
    assert "ranks 0-1" in result.text


def test_explicit_example(run: Finished) -> None:
    result = run["test_explicit"]
    assert result.verdict == "failed"
    assert re.findall(r"^E +n=(-?\d+),", result.text, re.MULTILINE) == ["4321"], result.text
    assert re.findall(r"^E +noted (-?\d+)", result.text, re.MULTILINE) == ["4321"]


def test_fixture_that_examples_would_share(run: Finished) -> None:
    result = run["test_fixture_that_examples_share"]
    assert result.verdict == "failed"
    assert "uses the function-scoped fixture 'tmp_path'" in result.text


def test_no_database(run: Finished) -> None:
    assert not (run.directory / ".hypothesis" / "examples").exists()


def test_seeds(suite: Suite) -> None:
    """Every run draws the same; a seed that is given draws others."""
    suite.write("test_draws.py", DRAWS)
    first, again, ours, theirs = (
        _draws(suite.run("--ddp-output=all", "-rP", *flags))
        for flags in ((), (), ("--ddp-seed=1",), ("--hypothesis-seed=1",))
    )
    assert first == again
    assert len(first["plain"]) > 50
    for other in (ours, theirs):
        assert other["plain"] != first["plain"]
        assert other["seed"] == first["seed"]
        assert other["derandomized"] == first["derandomized"]


def _draws(finished: Finished) -> dict[str, list[str]]:
    finished.assert_outcomes(passed=3)
    found = re.findall(r"^(plain|seed|derandomized) (-?\d+)$", finished.stdout, re.MULTILINE)
    return {kind: [n for k, n in found if k == kind] for kind in ("plain", "seed", "derandomized")}
