"""What Lightning's own resumption keeps of DET-02: all without workers, and not with one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from ddp_conformance import Case, Leg, Subject, TrainLoop, Watch, parametrize_with_checks
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck


class Fit(LightningModule):
    """A linear fit; Lightning shards the loader and sets the epoch of its sampler."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        self.layer = nn.Linear(1, 1)

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        index = batch["index"].float()[:, None]
        loss: Tensor = ((self.layer(index / self.case.size) - index % 3) ** 2).mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    def train_dataloader(self) -> DataLoader[Any]:
        workers = self.case.num_workers
        return DataLoader(self.case.dataset, batch_size=4, shuffle=True, num_workers=workers)


class Tell(Callback):
    """Lightning's hooks, in the words of the watch."""

    def __init__(self, watch: Watch, leg: Leg) -> None:
        self.watch = watch
        self.leg = leg

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.watch.begin(pl_module)
        self.save(trainer)

    def save(self, trainer: Trainer) -> None:
        if trainer.global_step in self.leg.save_at:
            trainer.save_checkpoint(self.leg.save_at[trainer.global_step])

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: dict[str, Tensor],
        batch_idx: int,
    ) -> None:
        self.watch.step(trainer.current_epoch, batch["index"].tolist())
        self.save(trainer)


def lightning_fit(case: Case, leg: Leg, watch: Watch) -> None:
    from ddp_conformance.windows.trainer_runs import advice_ignored, quiet_trainer

    torch.manual_seed(3)
    module = Fit(case)
    with advice_ignored():
        trainer = quiet_trainer(case, DDPStrategy(), [Tell(watch, leg)], max_epochs=leg.epochs)
        trainer.fit(module, ckpt_path=leg.resume, weights_only=False)
        if leg.save is not None:
            trainer.save_checkpoint(leg.save)
    watch.end(module)


@parametrize_with_checks(
    [TrainLoop(lightning_fit, {"resumes"})],
    expected_failures={
        "DET-02": "Lightning#21938: with workers, epoch 0's order again after a resumption",
        "DET-03": "the fit seeds torch alone, and Lightning saves no random states",
        "DET-05": "the fit gives all ranks one seed",
    },
    world_size=(2,),
    share_ranks=True,
)
def test_lightning(subject: Subject, check: BoundCheck) -> None:
    check(subject)
