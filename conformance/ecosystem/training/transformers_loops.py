"""A training with the Trainer of Transformers, which saves and resumes by its own means."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import torch
import torch.distributed as dist
from ddp_conformance import Case, Leg, Watch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging

from conformance.ecosystem.frame.loops import losses_of, seed_rank
from conformance.ecosystem.frame.models import Net

BATCH = 4


class Fitted(nn.Module):
    """A model with dropout; keeps the samples of its last batch, and the losses of an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Net(), nn.Dropout(0.2))
        self.indices: list[int] = []
        self.losses: list[Tensor] = []

    def forward(self, index: Tensor, worker: Tensor) -> dict[str, Tensor]:
        self.indices = index.tolist()
        losses = losses_of(self.layers, self.indices)
        self.losses.append(losses.detach())
        return {"loss": losses.mean()}

    def mean_loss(self) -> float:
        """Over all ranks' samples since the last call; a collective."""
        losses = torch.cat(self.losses)
        self.losses = []
        total = torch.tensor([losses.sum().item(), float(len(losses))])
        if dist.is_initialized():
            dist.all_reduce(total)
        return (total[0] / total[1]).item()


class Tell(TrainerCallback):
    """The Trainer's events, in the words of the watch."""

    def __init__(self, case: Case, leg: Leg, watch: Watch, save: Callable[[Path], None]) -> None:
        self.case, self.leg, self.watch, self.save = case, leg, watch, save

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        if self.leg.resume is None:
            seed_rank(self.case.rank)  # the Trainer gives all ranks one seed
        self.watch.begin(rest["model"], self.case.dataset)
        self._save_if_asked(state)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        # Its fraction of epochs is a whole number after an epoch's last step.
        steps = state.max_steps // args.num_train_epochs
        self.watch.step((state.global_step - 1) // int(steps), rest["model"].indices)
        self._save_if_asked(state)
        if state.global_step == self.leg.steps:
            control.should_training_stop = True

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any
    ) -> None:
        steps = int(state.max_steps // args.num_train_epochs)
        if state.global_step % steps == 0:
            self.watch.epoch(state.global_step // steps - 1, rest["model"].mean_loss())

    def _save_if_asked(self, state: TrainerState) -> None:
        if state.global_step in self.leg.save_at:
            self.save(self.leg.save_at[state.global_step])


def trainer_fit(case: Case, leg: Leg, watch: Watch) -> None:
    """One leg, with a Trainer of its own."""
    # One process trains on all ranks and alone, which Accelerate's states are not made for.
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    logging.set_verbosity_error()
    folder = case.directory / "trainer"
    options = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=leg.epochs,
        per_device_train_batch_size=BATCH,
        dataloader_num_workers=case.num_workers,
        lr_scheduler_type="constant",
        learning_rate=0.01,
        weight_decay=0.01,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        ddp_find_unused_parameters=False,
    )

    def save(path: Path) -> None:
        trainer._save_checkpoint(trainer.model, None)
        if dist.is_initialized():
            dist.barrier()
        if case.rank == 0:
            shutil.move(folder / f"checkpoint-{trainer.state.global_step}", path)
        if dist.is_initialized():
            dist.barrier()

    torch.manual_seed(3)
    model = Fitted()
    tell = Tell(case, leg, watch, save)
    trainer = Trainer(model, options, train_dataset=case.dataset, callbacks=[tell])
    trainer.train(resume_from_checkpoint=None if leg.resume is None else str(leg.resume))
    if leg.save is not None:
        save(leg.save)
    watch.end(model)
