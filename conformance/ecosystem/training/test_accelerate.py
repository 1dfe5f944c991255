"""Accelerate's loaders, how it splits work, and what it saves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from ddp_conformance import Case, Evaluation, Loader, Sampler, Subject, Writer
from ddp_conformance.metrics.subjects import sample_value
from torch.utils.data import DataLoader

from conformance.ecosystem.frame.models import Net
from conformance.ecosystem.frame.parts import Breach, Part, parametrize_with_parts

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck

accelerate = pytest.importorskip("accelerate")


def evaluated(case: Case, gather: str) -> Callable[[], float]:
    """The mean over what a method of the accelerator gathers of each batch."""
    accelerator = accelerate.Accelerator(cpu=True)
    loader = accelerator.prepare(DataLoader(case.dataset, batch_size=2))

    def evaluate() -> float:
        indices: list[int] = []
        for batch in loader:
            indices += getattr(accelerator, gather)(batch["index"]).tolist()
        return sum(map(sample_value, indices)) / len(indices)

    return evaluate


def accelerate_gather_for_metrics(case: Case) -> Callable[[], float]:
    return evaluated(case, "gather_for_metrics")


def accelerate_gather(case: Case) -> Callable[[], float]:
    return evaluated(case, "gather")


def accelerate_reduce(case: Case) -> Callable[[], float]:
    """Sums and numbers of all ranks, each rank with its share."""
    accelerator = accelerate.Accelerator(cpu=True)

    def evaluate() -> float:
        values = [sample_value(i) for i in range(case.rank, case.size, case.world_size)]
        sums = torch.tensor([sum(values), len(values)], dtype=torch.float64)
        total, count = accelerator.reduce(sums).tolist()
        return float(total / count)

    return evaluate


def accelerate_split(case: Case) -> Any:
    with accelerate.PartialState(cpu=True).split_between_processes(list(range(case.size))) as own:
        return own


def prepared(case: Case, **options: Any) -> Any:
    """A training loader of batches of two."""
    config = accelerate.DataLoaderConfiguration(use_seedable_sampler=True, **options)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=config)
    loader = DataLoader(case.dataset, batch_size=2, shuffle=True, num_workers=case.num_workers)
    return accelerator.prepare(loader)


def accelerate_even_loader(case: Case) -> Any:
    return prepared(case, data_seed=0)


def accelerate_uneven_loader(case: Case) -> Any:
    return prepared(case, data_seed=0, even_batches=False)


def accelerate_unseeded_loader(case: Case) -> Any:
    return prepared(case)


def accelerate_save_state(case: Case) -> Callable[[int], None]:
    """Each in a folder of its own."""
    accelerator = accelerate.Accelerator(cpu=True)
    model = Net()
    accelerator.prepare(model, torch.optim.AdamW(model.parameters()))

    def save(number: int) -> None:
        accelerator.save_state(str(case.directory / f"step-{number}"))

    return save


PARTS = [
    Part(
        Evaluation(accelerate_gather_for_metrics),
        "`accelerator.gather_for_metrics(batch)` of a prepared loader",
    ),
    Part(
        Evaluation(accelerate_gather),
        "`accelerator.gather(batch)` of a prepared loader",
        [
            Breach(
                ("MET-01", "MET-03"),
                "samples that make the last batches even are gathered too, as its documents say",
                "accelerate/gather.py",
            )
        ],
    ),
    Part(Evaluation(accelerate_reduce), "`accelerator.reduce(sums)`, each rank with its share"),
    Part(
        Sampler(accelerate_split, {"exact", "uneven", "evaluates"}),
        "`PartialState().split_between_processes(samples)`",
    ),
    Part(
        Loader(accelerate_even_loader, {"pads", "shuffles"}, batch_size=2),
        "`accelerator.prepare(DataLoader(dataset, shuffle=True))` with `data_seed=0`",
    ),
    Part(
        Loader(accelerate_uneven_loader, {"exact", "uneven", "shuffles"}),
        "the same with `even_batches=False`",
    ),
    Part(
        Loader(accelerate_unseeded_loader, {"pads", "shuffles"}, batch_size=2),
        "`accelerator.prepare(DataLoader(dataset, shuffle=True))` without it",
        [
            Breach(
                ("SMP-01",),
                "`use_seedable_sampler=True` then takes the rank's seed, which "
                "`set_seed(device_specific=True)` makes another one on each rank",
                "accelerate/device_specific_seed.py",
            )
        ],
    ),
    Part(Writer(accelerate_save_state), "`accelerator.save_state(folder)`"),
]


@parametrize_with_parts(PARTS)
def test_accelerate(subject: Subject, check: BoundCheck) -> None:
    check(subject)
