"""Accelerate's loaders, how it splits work, what it saves, and a loop that resumes from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest
import torch
from ddp_conformance import (
    Case,
    Evaluation,
    Leg,
    Loader,
    Sampler,
    Subject,
    TrainLoop,
    Watch,
    Writer,
)
from ddp_conformance.metrics.subjects import sample_value
from torch import nn
from torch.utils.data import DataLoader

from conformance.ecosystem.frame.loops import Loop
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


class AccelerateLoop(Loop):
    """A model with dropout; the position is an object that Accelerate saves with the rest."""

    def __init__(self, case: Case, leg: Leg, watch: Watch) -> None:
        # One process trains on all ranks and alone, which Accelerate's states are not made for.
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        super().__init__(case, leg, watch)
        config = accelerate.DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0)
        self.accelerator = accelerate.Accelerator(cpu=True, dataloader_config=config)
        loader = DataLoader(
            case.dataset, batch_size=BATCH, shuffle=True, num_workers=case.num_workers
        )
        self.model, self.optimizer, self.loader = self.accelerator.prepare(
            self.model, self.optimizer, loader
        )
        self.accelerator.register_for_checkpointing(self)

    def wrapped(self, model: nn.Module) -> nn.Module:
        return nn.Sequential(model, nn.Dropout(0.2))

    def batches_left(self) -> Iterator[tuple[Sequence[int], int]]:
        self.loader.set_epoch(self.epoch)
        for batch in self.accelerator.skip_first_batches(self.loader, self.batches):
            indices = batch["index"].tolist()
            yield indices, len(indices) * self.case.world_size

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "batches": self.batches, "steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        vars(self).update(state)

    def save(self, path: Any) -> None:
        self.accelerator.save_state(str(path))

    def load(self, path: Any) -> None:
        self.accelerator.load_state(str(path))


def accelerate_loop(case: Case, leg: Leg, watch: Watch) -> None:
    AccelerateLoop(case, leg, watch).run()


BATCH = 4

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
    Part(
        TrainLoop(accelerate_loop, {"pads", "resumes", "resumes_mid_epoch"}, batch_size=BATCH),
        "`accelerator.save_state(folder)`, `load_state` and `skip_first_batches`",
        [
            Breach(
                ("DET-02", "DET-03"),
                "a resumed epoch makes an iterator more, which draws from the rank's own generator "
                "after it was restored",
                "accelerate/draws_of_the_rest.py",
            ),
            Breach(
                ("DET-07",),
                "a rank without its file of random states goes on from others, and says so in a "
                "log record of level INFO",
                "accelerate/random_states.py",
                "accelerate#4283",
            ),
        ],
    ),
]


@parametrize_with_parts(PARTS)
def test_accelerate(subject: Subject, check: BoundCheck) -> None:
    check(subject)
