"""How samples are dealt to ranks, for any number of samples and ranks."""

from __future__ import annotations

import pickle
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from ddp_reference.windows.dataset import RepeatedIndex
from ddp_reference.windows.placement import Placement, current_placement
from ddp_reference.windows.sampling import ExactSampler, PaddedSampler
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data.distributed import DistributedSampler

counts = st.integers(1, 40)
worlds = st.integers(1, 7)


def padded(count: int, world: int, *, seed: int = 0, epoch: int = 0) -> list[list[int]]:
    """What each rank gets of ``count`` samples in ``epoch``."""
    shards = []
    for rank in range(world):
        sampler = PaddedSampler(range(count), Placement(rank, world), seed=seed)
        sampler.set_epoch(epoch)
        shard = list(sampler)
        assert len(shard) == len(sampler)
        shards.append(shard)
    return shards


def exact(count: int, world: int, *, fill_empty: bool) -> list[list[int]]:
    shards = []
    for rank in range(world):
        sampler = ExactSampler(range(count), Placement(rank, world), fill_empty=fill_empty)
        shard = list(sampler)
        assert len(shard) == len(sampler)
        shards.append(shard)
    return shards


def first_deliveries(shards: list[list[int]]) -> list[int]:
    return sorted(i for shard in shards for i in shard if not isinstance(i, RepeatedIndex))


@given(count=counts, world=worlds, epoch=st.integers(0, 3))
def test_training_shards_are_even_and_mark_what_repeats(count: int, world: int, epoch: int) -> None:
    shards = padded(count, world, epoch=epoch)
    assert len({len(shard) for shard in shards}) == 1
    assert first_deliveries(shards) == list(range(count))
    assert sum(map(len, shards)) - count == -count % world


@given(count=counts, world=worlds)
def test_validation_shards_are_exact(count: int, world: int) -> None:
    shards = exact(count, world, fill_empty=False)
    assert Counter(i for shard in shards for i in shard) == Counter(range(count))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@given(count=counts, world=worlds)
def test_no_rank_is_empty_where_that_is_asked_for(count: int, world: int) -> None:
    shards = exact(count, world, fill_empty=True)
    assert all(shards)
    assert first_deliveries(shards) == list(range(count))


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    torch.manual_seed(1)
    orders = [padded(20, 2, seed=5, epoch=epoch) for epoch in range(3)]
    torch.manual_seed(2)
    again = [padded(20, 2, seed=5, epoch=epoch) for epoch in range(3)]
    assert orders == again
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert orders[0] != padded(20, 2, seed=6)


def test_a_repeat_is_the_same_number_and_survives_the_way_to_a_worker() -> None:
    repeat = pickle.loads(pickle.dumps(RepeatedIndex(3)))
    assert repeat == 3
    assert [10, 11, 12, 13][repeat] == 13
    assert isinstance(repeat, RepeatedIndex)


def test_lightning_leaves_both_alone() -> None:
    # Lightning wraps every sampler that is not of this type, and repeats samples with it.
    assert issubclass(PaddedSampler, DistributedSampler)
    assert issubclass(ExactSampler, DistributedSampler)


def test_ranks_that_nobody_knows_of_yet_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not dist.is_initialized()
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert current_placement(None) == Placement(rank=0, world_size=1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="WORLD_SIZE is 2, but there is no process group yet"):
        current_placement(None)
