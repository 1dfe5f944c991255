"""Exact evaluation batches: every sample once, as many batches on every rank."""

from __future__ import annotations

from ddp_reference.resnet.samplers import ExactBatches
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(0, 60), st.integers(1, 9), st.integers(1, 7))
def test_ranks_have_equally_many_batches(count: int, batch_size: int, world_size: int) -> None:
    samplers = [ExactBatches(count, batch_size, r, world_size) for r in range(world_size)]
    assert {len(list(s)) for s in samplers} == {len(samplers[0])}
    assert all(len(batch) <= batch_size for s in samplers for batch in s)


def test_the_rank_with_one_sample_less_ends_with_an_empty_batch() -> None:
    assert list(ExactBatches(5, 2, 0, 2)) == [[0, 2], [4]]
    assert list(ExactBatches(5, 2, 1, 2)) == [[1, 3], []]


def test_no_batch_too_many() -> None:
    assert list(ExactBatches(4, 2, 0, 2)) == [[0, 2]]
