"""The training lifecycle repeats, resumes and agrees, at world sizes 1, 2 and 4.

Sharded and split at 2, where all is there that a shard can lose, and half of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist
from ddp_conformance import Case, Leg, Subject, TrainLoop, Watch, parametrize_with_checks
from ddp_reference.training.config import Strategy, TrainConfig
from ddp_reference.training.lifecycle import run
from ddp_reference.training.loop import Begun, Delivered, EpochReport, Event, Stepped
from ddp_reference.training.stages import STAGES

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck


class WatchAdapter:
    """The lifecycle's events, in the words of the watch."""

    def __init__(
        self, watch: Watch, save_at: Mapping[int, Path], *, tells_samples: bool = True
    ) -> None:
        self.watch = watch
        self.save_at = save_at
        self.tells_samples = tells_samples
        self.ids: list[int] = []
        self.begun: Begun | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Begun):
            self.begun = event
            self.watch.begin(event.model, event.dataset)
            self.save_after(0)
        elif isinstance(event, Delivered) and event.training and self.tells_samples:
            pairs = zip(event.ids, event.weights, strict=True)
            self.ids += [ident for ident, weight in pairs if weight]
        elif isinstance(event, Stepped):
            self.watch.step(event.epoch, self.ids)
            self.ids = []
            self.save_after(event.step)
        elif isinstance(event, EpochReport):
            self.watch.epoch(event.epoch, event.loss)

    def save_after(self, step: int) -> None:
        assert self.begun is not None
        if step in self.save_at:
            self.begun.save(self.save_at[step])


def config_of(case: Case, leg: Leg) -> TrainConfig:
    return TrainConfig(
        samples=case.size,
        batch_size=12,
        epochs=leg.epochs,
        max_steps=leg.steps,
        checkpoint=leg.save,
        resume=leg.resume,
        width=8,
        depth=1,
        min_num_params=64,
        workers=case.num_workers,
        data=case.directory / "data.pt",
    )


def train_diffusion(case: Case, leg: Leg, watch: Watch) -> None:
    """Train with noise that is random, and a function of seed, epoch and sample."""
    train("diffusion", config_of(case, leg), WatchAdapter(watch, leg.save_at))


def train_sharded(case: Case, leg: Leg, watch: Watch) -> None:
    """Train with FSDP2, and without a wrapper where there is no group.

    Without workers: the loader is that of :func:`train_diffusion`, which has them.
    """
    strategy: Strategy = "fsdp2" if dist.is_initialized() else "none"
    config = replace(config_of(case, leg), strategy=strategy, workers=0)
    train("operator", config, WatchAdapter(watch, leg.save_at))


def train_split(case: Case, leg: Leg, watch: Watch) -> None:
    """Train with tensor parallelism: the ranks have the same samples, and the first reports
    them."""
    strategy: Strategy = "tp" if dist.is_initialized() else "none"
    config = replace(config_of(case, leg), strategy=strategy, workers=0)
    train("operator", config, WatchAdapter(watch, leg.save_at, tells_samples=case.rank == 0))


def train(stage: str, config: TrainConfig, events: WatchAdapter) -> None:
    run(STAGES[stage], config, events)
    assert events.begun is not None
    events.watch.end(events.begun.model)


ALL = {"resumes", "resumes_mid_epoch", "resumes_elsewhere", "global_batch"}


@parametrize_with_checks([TrainLoop(train_diffusion, ALL)], world_size=(1, 2, 4), share_ranks=True)
def test_reference(subject: Subject, check: BoundCheck) -> None:
    check(subject)


@parametrize_with_checks([TrainLoop(train_sharded, ALL)], world_size=(2,), share_ranks=True)
def test_sharded(subject: Subject, check: BoundCheck) -> None:
    check(subject)


@parametrize_with_checks([TrainLoop(train_split, ALL)], world_size=(2,), share_ranks=True)
def test_split(subject: Subject, check: BoundCheck) -> None:
    check(subject)
