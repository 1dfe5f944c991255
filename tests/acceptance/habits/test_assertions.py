"""``ddp.assert_same``, ``assert_close`` and ``assert_differ``: whatever a value is made of."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.habits.assertion_examples import TESTS, VALUES
from tests.acceptance.suite import Finished, Suite

SHOWN = """
    import pytest
    import torch
    from values import *

    def test_parameter(ddp):
        ddp.assert_same(model(0.5 * (ddp.rank == 1)))

    def test_matrix(ddp):
        ddp.assert_same(torch.arange(6.0).reshape(2, 3) + (ddp.rank == 2))

    def test_shapes(ddp):
        ddp.assert_same({"x": torch.zeros(2 + ddp.rank // 2)})

    def test_text(ddp):
        ddp.assert_same(VALUES["text"](ddp.rank))

    def test_far(ddp):
        ddp.assert_close({"w": torch.tensor([1.0, 2.0, 3.0 + ddp.rank])})

    def test_alike(ddp):
        ddp.assert_differ(torch.tensor([ddp.rank // 2]))
"""


@pytest.fixture(scope="module")
def ran(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("values.py", VALUES)
    suite.write("test_values.py", TESTS)
    return suite.run("--tb=short", timeout=120)


@pytest.fixture(scope="module")
def shown(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("values.py", VALUES)
    suite.write("test_shown.py", SHOWN)
    return suite.run(env={"COLUMNS": "80"})


NAMES = [line.split('"')[1] for line in VALUES.splitlines() if line.startswith('        "')]
PASSING = (
    "equal_though_unlike",
    "close",
    "tolerances",
    "names_that_are_equal",
    "large_integers",
    "scalars_that_are_far",
    "far_in_many_chunks",
    "different",
    "shards",
    "replicas_of_shards",
    "cannot_be_compared",
)


@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_equal_is_the_same(ran: Finished, name: str) -> None:
    result = ran[f"test_equal[{name}]"]
    assert result.verdict == "passed", result.text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("test", ["other_on_rank_2", "not_close_on_rank_1"])
def test_whatever_differs_is_found(ran: Finished, test: str, name: str) -> None:
    """All ranks fail, with one text that has the values of both sides."""
    result = ran[f"test_{test}[{name}]"]
    assert result.verdict == "failed"
    assert result.text.count("the ranks differ at") == 1
    assert "ranks 0-2 of 3 failed" in result.text
    assert ("ranks 0, 1" in result.text) == (test == "other_on_rank_2")
    assert "rank 2" in result.text or "rank 1" in result.text
    assert "pytest_ddp/" not in result.text  # no frame of ours


@pytest.mark.parametrize("name", NAMES)
def test_whatever_should_differ(ran: Finished, name: str) -> None:
    result = ran[f"test_not_different[{name}]"]
    assert result.verdict == "failed"
    assert "ddp.assert_differ: ranks 0, 2 have the same value" in result.text


@pytest.mark.parametrize("name", PASSING)
def test_what_passes(ran: Finished, name: str) -> None:
    found = {
        n: r for n, r in ran.results.items() if n.partition("::test_")[2].split("[")[0] == name
    }
    assert found
    for result in found.values():
        assert result.verdict == "passed", result.text


def test_a_rank_that_does_not_arrive_is_named(ran: Finished) -> None:
    text = ran["test_one_does_not_arrive"].text
    assert "ddp.assert_same() #1 of the test can never complete: rank 1 has ended" in text
    text = ran["test_another_operation"].text
    assert "rank 0 is in ddp.gather() #1" in text
    assert "is in ddp.assert_same() #1" in text


TEXTS = {
    "parameter": """
        AssertionError: ddp.assert_same: the ranks differ at 0.weight[1, 2]

          ranks 0, 2  0.100000001
          rank 1      0.600000024

        0.weight is float32 of shape (2, 3) on cpu
        rank 1: 1 of 6 elements differ from rank 0; greatest difference 0.5 at [1, 2]
    """,
    "matrix": """
        AssertionError: ddp.assert_same: the ranks differ at value[0, 0]

          ranks 0, 1  0
          rank 2      1

        value is float32 of shape (2, 3) on cpu
        rank 2: 6 of 6 elements differ from rank 0; greatest difference 1 at [0, 0]
    """,
    "shapes": """
        AssertionError: ddp.assert_same: the ranks differ at ['x']

          ranks 0, 1  float32 of shape (2,) on cpu
          rank 2      float32 of shape (3,) on cpu

        1 of 2 entries differ: ['x']
    """,
    "text": """
        AssertionError: ddp.assert_same: the ranks differ at value

          rank 0  ...aaaaaaaaaaaaaaaaaaaa0bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb...
          rank 1  ...aaaaaaaaaaaaaaaaaaaa1bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb...
          rank 2  ...aaaaaaaaaaaaaaaaaaaa2bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb...
    """,
    "far": """
        AssertionError: ddp.assert_close: the ranks differ at ['w'][2]

          rank 0  3
          rank 1  4
          rank 2  5

        ['w'] is float32 of shape (3,) on cpu; allowed: 1e-05 absolute, 1.3e-06 relative
        rank 1: 1 of 3 elements differ from rank 0; greatest difference 1 at [2]
        rank 2: 1 of 3 elements differ from rank 0; greatest difference 2 at [2]

        1 of 2 entries differ: ['w']
    """,
    "alike": """
        AssertionError: ddp.assert_differ: ranks 0, 1 have the same value

          ranks 0, 1  tensor([0])
    """,
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts(shown: Finished, name: str) -> None:
    seen = [
        line.removeprefix("E").strip()
        for line in shown[f"test_{name}"].text.splitlines()
        if line.startswith("E")
    ]
    expected = [line.strip() for line in TEXTS[name].strip().splitlines()]
    assert seen[: len(expected)] == expected


LARGE = """
    import pytest
    import torch

    @pytest.mark.ddp(world_size=2)
    def test_large(ddp):
        model = torch.nn.ParameterList(torch.zeros(2**20) for _ in range(64))
        ddp.gather(None)
        sent = []
        exchange = ddp._transport
        def count(operation, source, payload):
            sent.append(len(payload))
            return exchange(operation, source, payload)
        ddp._transport = count
        ddp.assert_same(model)
        assert sum(sent) < 100
        with torch.no_grad():
            model[63][2**20 - 1] = ddp.rank
        with pytest.raises(AssertionError, match=r"63\\[1048575\\]"):
            ddp.assert_same(model)
        assert sum(sent) < 1_000_000
"""


def test_a_large_model_is_compared_by_its_digests(suite: Suite) -> None:
    suite.write("test_large.py", LARGE)
    suite.run().assert_outcomes(passed=1)
