"""Orders, weights and noise, for many world sizes, without a process group."""

import pickle
from collections import Counter
from itertools import chain, product
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
    mix,
)
from torch import nn

SIZES = [(n, ws) for ws in (1, 2, 3, 4, 7) for n in (ws, ws + 1, 2 * ws + 3, 8 * ws, 61)]
WORLDS = pytest.mark.parametrize(("samples", "world_size"), SIZES)
PADS = pytest.mark.parametrize("pads", [True, False], ids=["pad", "join"])


def plans(samples: int, world_size: int, pads: bool, accumulate: int = 1) -> list[BatchPlan]:
    return [BatchPlan(samples, 2, accumulate, world_size, r, pads) for r in range(world_size)]


def epoch(plan: BatchPlan, number: int = 0, begin: int = 0) -> list[SampleKey]:
    sampler = EpochSampler(plan, shuffle=True, seed=5)
    sampler.set_epoch(number)
    sampler.begin_at(begin)
    keys = list(sampler)
    assert len(keys) == len(sampler)
    return keys


@WORLDS
@PADS
def test_every_sample_counts_once_and_padding_counts_nothing(
    samples: int, world_size: int, pads: bool
) -> None:
    keys = [key for plan in plans(samples, world_size, pads) for key in epoch(plan)]
    counted = Counter(key.item for key in keys if key.weight == 1.0)
    assert counted == Counter(range(samples))
    padding = [key for key in keys if key.weight == 0.0]
    assert len(keys) == samples + len(padding)
    assert len(padding) == (-samples % world_size if pads else 0)


@WORLDS
def test_padded_ranks_make_the_same_number_of_batches(samples: int, world_size: int) -> None:
    assert len({plan.batches for plan in plans(samples, world_size, True)}) == 1
    assert len({len(epoch(plan)) for plan in plans(samples, world_size, True)}) == 1


@pytest.mark.parametrize(("world_size", "accumulate"), [*product([1, 2, 4], [1, 2])])
@PADS
def test_a_step_covers_the_same_samples_whatever_the_number_of_ranks(
    world_size: int, accumulate: int, pads: bool
) -> None:
    def steps(plan: BatchPlan) -> list[list[int]]:
        keys = [key.item for key in epoch(plan) if key.weight]
        size = plan.local_batch * plan.accumulate
        return [keys[at : at + size] for at in range(0, plan.steps * size, size)]

    local = 8 // (world_size * accumulate)
    ranks = [BatchPlan(61, local, accumulate, world_size, r, pads) for r in range(world_size)]
    alone = steps(BatchPlan(61, 8, 1, 1, 0, True))
    together = [
        sorted(chain.from_iterable(parts)) for parts in zip(*map(steps, ranks), strict=True)
    ]
    assert together == [sorted(step) for step in alone]


@WORLDS
@PADS
@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_ranks_mean_of_scaled_sums_is_the_mean_over_the_steps_samples(
    samples: int, world_size: int, pads: bool, accumulate: int
) -> None:
    """The average that DDP forms must be 1 in each step, with a loss of 1 for each sample."""
    ranks = plans(samples, world_size, pads, accumulate)
    totals = [0.0] * ranks[0].steps
    for plan in ranks:
        keys = epoch(plan)
        for batch in range(plan.batches):
            part = keys[batch * plan.local_batch : (batch + 1) * plan.local_batch]
            share = sum(key.weight for key in part) * plan.loss_scale(batch)
            totals[plan.step_of(batch)] += share / world_size
    assert totals == pytest.approx([1.0] * len(totals))


@PADS
def test_every_rank_closes_each_step_it_has_a_part_in_exactly_once(pads: bool) -> None:
    for plan in plans(23, 4, pads, accumulate=2):
        closed = [plan.step_of(b) for b in range(plan.batches) if plan.closes_step(b)]
        assert closed == sorted({plan.step_of(batch) for batch in range(plan.batches)})
        assert plan.closes_step(plan.batches - 1)


def test_the_order_is_a_function_of_seed_and_epoch_alone() -> None:
    plan = BatchPlan(40, 4, 1, 2, 1, True)
    torch.manual_seed(1)
    first = epoch(plan, 0)
    torch.manual_seed(2)
    assert epoch(plan, 0) == first
    assert [key.item for key in epoch(plan, 1)] != [key.item for key in first]
    assert {key.epoch for key in epoch(plan, 3)} == {3}


def test_an_epoch_is_taken_up_at_any_batch() -> None:
    plan = BatchPlan(41, 4, 1, 2, 1, True)
    for batch in range(plan.batches + 1):
        assert epoch(plan, 2, begin=batch) == epoch(plan, 2)[4 * batch :]


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


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # few cores
@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_delivers_the_plan(cache: LatentCache, workers: int) -> None:
    plan = BatchPlan(12, 5, 1, 1, 0, True)
    sampler = EpochSampler(plan, shuffle=True, seed=1)
    dataset = LatentPairs(cache, range(12), 0)
    loader = build_latent_pair_loader(dataset, sampler, plan, workers=workers, cuda=False)
    for number in range(2):
        sampler.set_epoch(number)
        batches = list(loader)
        assert [len(batch["id"]) for batch in batches] == [5, 5, 2]
        assert {int(e) for batch in batches for e in batch["epoch"]} == {number}
        ids = [int(ident) for batch in batches for ident in batch["id"]]
        assert ids == [key.item for key in sampler]


def test_a_loader_for_cuda_pins_its_batches(cache: LatentCache) -> None:
    plan = BatchPlan(12, 5, 1, 1, 0, True)
    sampler = EpochSampler(plan, shuffle=True, seed=1)
    dataset = LatentPairs(cache, range(12), 0)
    assert build_latent_pair_loader(dataset, sampler, plan, workers=0, cuda=True).pin_memory


class ModuleFinder(pickle.Unpickler):
    """Records the classes that a pickle names."""

    def __init__(self, file: object) -> None:
        super().__init__(file)  # type: ignore[arg-type]
        self.found: list[object] = []

    def find_class(self, module: str, name: str) -> object:
        self.found.append(super().find_class(module, name))
        return self.found[-1]


def test_the_data_set_holds_no_module(cache: LatentCache, tmp_path: Path) -> None:
    """What a trainer moves or trains cannot be the data set's."""
    path = tmp_path / "dataset.pickle"
    path.write_bytes(pickle.dumps(LatentPairs(cache, range(12), 0)))
    with path.open("rb") as file:
        finder = ModuleFinder(file)
        finder.load()
    assert LatentPairs in finder.found
    modules = [f for f in finder.found if isinstance(f, type) and issubclass(f, nn.Module)]
    assert modules == []


def test_neighbouring_numbers_give_unrelated_seeds() -> None:
    seeds = {mix(a, b, c) for a, b, c in product(range(8), range(8), range(64))}
    assert len(seeds) == 8 * 8 * 64
    assert all(0 <= seed < 1 << 63 for seed in seeds)
