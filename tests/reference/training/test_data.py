"""Weights and noise, without a process group; who gets what is the matter of `make conformance`."""

from itertools import product
from pathlib import Path

import pytest
import torch
from ddp_reference.cache import LatentCache, write
from ddp_reference.training.burgers import latent_pairs
from ddp_reference.training.data import (
    BatchPlan,
    EpochSampler,
    LatentPairs,
    SampleKey,
    build_latent_pair_loader,
)

SIZES = [(n, ws) for ws in (1, 2, 3, 4, 7) for n in (ws, ws + 1, 2 * ws + 3, 8 * ws, 61)]


@pytest.mark.parametrize(("samples", "world_size"), SIZES)
@pytest.mark.parametrize("pads", [True, False], ids=["pad", "join"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_ranks_mean_of_scaled_sums_is_the_mean_over_the_steps_samples(
    samples: int, world_size: int, pads: bool, accumulate: int
) -> None:
    """The average that DDP forms must be 1 in each step, with a loss of 1 for each sample."""
    ranks = [BatchPlan(samples, 2, accumulate, world_size, r, pads) for r in range(world_size)]
    totals = [0.0] * ranks[0].steps
    for plan in ranks:
        keys = list(EpochSampler(plan, shuffle=True, seed=5))
        for batch in range(plan.batches):
            part = keys[batch * plan.local_batch : (batch + 1) * plan.local_batch]
            share = sum(key.weight for key in part) * plan.loss_scale(batch)
            totals[plan.step_of(batch)] += share / world_size
    assert totals == pytest.approx([1.0] * len(totals))


@pytest.mark.parametrize("pads", [True, False], ids=["pad", "join"])
def test_every_rank_closes_each_step_it_has_a_part_in_exactly_once(pads: bool) -> None:
    for plan in (BatchPlan(23, 2, 2, 4, rank, pads) for rank in range(4)):
        closed = [plan.step_of(b) for b in range(plan.batches) if plan.closes_step(b)]
        assert closed == sorted({plan.step_of(batch) for batch in range(plan.batches)})
        assert plan.closes_step(plan.batches - 1)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    path: Path = tmp_path_factory.mktemp("data") / "burgers.pt"
    write(path, latent_pairs(12, 0), "test")
    return LatentCache.open(path, segment_dir=None)


def test_noise_is_a_function_of_seed_epoch_and_sample(cache: LatentCache) -> None:
    def noise(seed: int, epoch: int, item: int) -> tuple[float, ...]:
        sample = LatentPairs(cache, range(2, 12), seed)[SampleKey(epoch, item, 1.0)]
        return (*sample["noise"].tolist(), *sample["level"].tolist())

    first = noise(0, 0, 0)
    torch.manual_seed(99)
    assert noise(0, 0, 0) == first
    draws = {noise(*key) for key in product(range(2), range(3), range(10))}
    assert len(draws) == 60


def test_a_sample_shows_where_it_is_from(cache: LatentCache) -> None:
    sample = LatentPairs(cache, range(4, 12), 0)[SampleKey(7, 3, 0.0)]
    assert (int(sample["id"]), int(sample["epoch"]), float(sample["weight"])) == (7, 7, 0.0)
    assert torch.equal(sample["field"], cache.tensor("field")[7])


def test_a_loader_for_cuda_pins_its_batches(cache: LatentCache) -> None:
    plan = BatchPlan(12, 5, 1, 1, 0, True)
    sampler = EpochSampler(plan, shuffle=True, seed=1)
    dataset = LatentPairs(cache, range(12), 0)
    assert build_latent_pair_loader(dataset, sampler, plan, workers=0, cuda=True).pin_memory
