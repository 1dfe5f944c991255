"""The reference's samplers, loader and windows at world sizes that no test machine has."""

from __future__ import annotations

import random
import warnings
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ddp_conformance import Case, GuaranteeError, Loader, Sampler
from ddp_conformance.framework.mutants import (
    BenignVariant,
    Mutant,
    all_benign_variants,
    all_mutants,
)
from ddp_conformance.simulation import simulate
from ddp_conformance.windows.history import WindowSample
from ddp_conformance.windows.judge import judge_same_windows
from ddp_reference.cache import LatentCache, write
from ddp_reference.resnet.samplers import ExactBatches
from ddp_reference.saliency.samplers import ExactDistributedSampler
from ddp_reference.training.data import (
    BatchPlan,
    EpochSampler,
    LatentPairs,
    build_latent_pair_loader,
)

with warnings.catch_warnings():
    # torch_geometric uses what torch itself has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from ddp_reference.windows.callbacks import ResampleDataCallback
    from ddp_reference.windows.placement import Placement
    from ddp_reference.windows.sampling import PaddedSampler

LARGE = 4096


def saliency_val(case: Case) -> Any:
    return ExactDistributedSampler(case.dataset, case.world_size, case.rank)


def resnet_val(case: Case) -> Any:
    return ExactBatches(case.size, 2, case.rank, case.world_size)


def windows_train(case: Case) -> Any:
    return PaddedSampler(case.dataset, Placement(case.rank, case.world_size), seed=5)


def plan_of(case: Case) -> BatchPlan:
    return BatchPlan(case.size, 2, 1, case.world_size, case.rank, pads=True)


def training(case: Case) -> Any:
    return EpochSampler(plan_of(case), shuffle=True, seed=5)


def item_of(key: Any) -> tuple[int, ...]:
    return (key.item,)


def make_cache(case: Case) -> None:
    write(case.directory / "latents.pt", {"latent": torch.zeros(case.size, 1)}, "simulation")


@cache
def opened(path: Path) -> LatentCache:
    return LatentCache.open(path, segment_dir=None)


def latent_loader(case: Case) -> Any:
    dataset = LatentPairs(opened(case.directory / "latents.pt"), range(case.size), seed=5)
    return build_latent_pair_loader(dataset, training(case), plan_of(case), workers=0, cuda=False)


def ids_of(batch: Any) -> tuple[int, ...]:
    return tuple(batch["id"].tolist())


EXACT = {"exact", "uneven", "evaluates"}


SHUFFLED = {"pads", "shuffles"}


@pytest.mark.parametrize(
    ("subject", "world_size", "judged"),
    [
        (Sampler(saliency_val, EXACT), LARGE, ("SMP-01", "SMP-03")),
        (Sampler(resnet_val, EXACT), 1024, ("SMP-01", "SMP-03")),
        (Sampler(training, SHUFFLED, indices=item_of), 1024, ("SMP-01", "SMP-02", "SMP-04")),
        # Each rank makes the order of all: the cost grows with the square of their number.
        (Sampler(windows_train, SHUFFLED), 256, ("SMP-01", "SMP-02", "SMP-04")),
        (
            Loader(latent_loader, SHUFFLED, prepare=make_cache, indices=ids_of),
            256,
            ("SMP-01", "SMP-02", "SMP-04"),
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_samplers_and_loaders_keep_their_guarantees(
    subject: Sampler | Loader, world_size: int, judged: tuple[str, ...]
) -> None:
    assert simulate(subject, world_size, (world_size + 1,)) == judged
    opened.cache_clear()


def test_the_usual_sizes_are_uneven() -> None:
    assert simulate(Sampler(training, SHUFFLED, indices=item_of), 13)
    with pytest.raises(GuaranteeError, match=r"SMP-03 .*on 13 simulated ranks:\n  size "):
        simulate(Sampler(training, {"pads", "evaluates"}, indices=item_of), 13)


@pytest.mark.parametrize("guarantee", ["SMP-01", "SMP-02", "SMP-03", "SMP-04"])
def test_simulated_ranks_kill_the_samplers_mutants_too(guarantee: str) -> None:
    """Simulated ranks kill some of the mutants: some defects need real ranks or many samples."""
    mutants = [m.subject for m in all_mutants() if m.guarantee == guarantee]
    killed = [subject.name for subject in mutants if broken_by(subject, guarantee)]
    assert killed


def broken_by(subject: Any, guarantee: str) -> bool:
    try:
        simulate(subject, 7, (64,))
    except GuaranteeError as error:
        return str(error).startswith(guarantee)
    return False


LATE = ("stops_at_64", "loses_two", "numbered_in_int8", "order_repeats_late", "order_alternates")


@pytest.mark.parametrize(
    "mutant",
    [m for m in all_mutants() if m.subject.name in (*LATE, "epoch_forgotten")],
    ids=lambda mutant: mutant.subject.name,
)
def test_by_itself_it_finds_what_shows_late(mutant: Mutant) -> None:
    """Beyond 64 samples or 127, at a remainder of two, from epoch 1 or 2 on."""
    with pytest.raises(GuaranteeError, match=f"^{mutant.guarantee} is .* 7 simulated ranks:"):
        simulate(mutant.subject, 7)


COMMUNICATE = ("shards_of_rank_zeros_set", "shards_of_the_first_set")
"""Samplers that need the process group of real ranks."""


@pytest.mark.parametrize(
    "variant",
    [
        variant
        for variant in all_benign_variants()
        if isinstance(variant.subject, Sampler) and variant.subject.name not in COMMUNICATE
    ],
    ids=lambda variant: variant.subject.name,
)
def test_by_itself_it_accuses_no_variant(variant: BenignVariant) -> None:
    assert simulate(variant.subject, 7)


def windows_of(rank: int) -> list[WindowSample]:
    """The training windows of three epochs, as one rank chooses them."""
    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(rank)
    callback = ResampleDataCallback(
        "2020-01-01", "2021-01-01", "2021-02-01", "2021-03-01", train_window_days=14
    )
    chosen = [callback.first_train_window()]
    for version in (1, 2):
        data: Any = SimpleNamespace(train=SimpleNamespace(window=chosen[-1]), train_version=version)
        chosen.append(callback.next_train_window(data))
    return [
        WindowSample(rank, "train", epoch, 0, 0, window.id, epoch, window.id, epoch)
        for epoch, window in enumerate(chosen)
    ]


def test_random_windows_are_the_same_on_all_ranks() -> None:
    history = [seen for rank in range(1024) for seen in windows_of(rank)]
    assert judge_same_windows(history) == ()
    assert len({sample.window for sample in history}) == 3
