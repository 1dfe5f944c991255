"""The Lightning module: what is trained, measured and logged."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from ddp_reference.resnet.images import Batch
from ddp_reference.resnet.metrics import StageMetrics
from ddp_reference.resnet.model import ResNet, Stem


class ResNetModule(LightningModule):
    """A :class:`ResNet` trained by SGD with momentum, linear warm-up and cosine decay.

    Logs ``train_loss``, ``train_accuracy`` and the same for ``val`` and ``test``, each
    the mean over the samples of all ranks, and ``learning_rate``, once per epoch. Every
    rank makes the same calls of ``self.log``; none depends on the rank.

    The arguments are plain values, because they are stored in checkpoints that
    ``torch.load(weights_only=True)`` has to read. ``learning_rate`` is the peak,
    reached after ``warmup_epochs``; ``example_resolution`` is that of the graph in
    TensorBoard, in pixels.
    """

    example_input_array: Tensor

    def __init__(
        self,
        num_classes: int,
        blocks: Sequence[int] = (2, 2, 2, 2),
        width: int = 64,
        stem: Stem = "imagenet",
        learning_rate: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        warmup_epochs: int = 1,
        example_resolution: int = 224,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = ResNet(num_classes, blocks, width, stem)
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.warmup_epochs = warmup_epochs
        self.example_input_array = torch.zeros(1, 3, example_resolution, example_resolution)
        self.train_metrics = StageMetrics()
        self.val_metrics = StageMetrics()
        self.test_metrics = StageMetrics()

    def forward(self, images: Tensor) -> Tensor:
        """Scores [batch, classes] of float32 images [batch, 3, height, width]."""
        scores: Tensor = self.model(images)
        return scores

    def on_train_epoch_start(self) -> None:
        """Set the epoch's learning rate, log it on all ranks and print it on one.

        A function of the epoch needs no scheduler, whose state in a checkpoint would
        hold on to the number of epochs that the first run was meant to have.
        """
        rate = self.learning_rate_in(self.current_epoch)
        self.set_learning_rate(rate)
        # The maximum of equal values is that value; a mean over 3 ranks may round.
        self.log("learning_rate", rate, sync_dist=True, reduce_fx="max")
        self.print(f"epoch {self.current_epoch}: learning rate {rate:.3g}")

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The mean loss of this rank's batch; DDP averages the ranks' gradients."""
        losses = self.measure(batch, self.train_metrics)
        self.log_means("train", self.train_metrics)
        return losses.mean()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Count the batch, which may be empty."""
        self.measure(batch, self.val_metrics)
        self.log_means("val", self.val_metrics)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Count the batch, which may be empty."""
        self.measure(batch, self.test_metrics)
        self.log_means("test", self.test_metrics)

    def measure(self, batch: Batch, metrics: StageMetrics) -> Tensor:
        """Count a batch in ``metrics`` and return its losses [batch]."""
        return metrics.update(self(batch.images), batch.labels)

    def log_means(self, stage: str, metrics: StageMetrics) -> None:
        """Hand the metrics to Lightning, which pools and resets them at the epoch's end.

        Lightning must get the metric, not its value: a value of one rank's batch could
        only be averaged afterwards.
        """
        self.log(f"{stage}_loss", metrics.loss, on_step=False, on_epoch=True, prog_bar=True)
        self.log(f"{stage}_accuracy", metrics.accuracy, on_step=False, on_epoch=True, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD on all parameters; its rate is set at the start of every epoch."""
        return torch.optim.SGD(
            self.model.parameters(),
            lr=self.learning_rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )

    def learning_rate_in(self, epoch: int) -> float:
        """The rate of ``epoch``: a line up to the peak, then half a cosine down."""
        if epoch < self.warmup_epochs:
            return self.learning_rate * (epoch + 1) / (self.warmup_epochs + 1)
        epochs = self.trainer.max_epochs or 1
        done = (epoch - self.warmup_epochs) / max(1, epochs - self.warmup_epochs)
        return self.learning_rate * (0.5 + 0.5 * math.cos(math.pi * min(done, 1.0)))

    def set_learning_rate(self, rate: float) -> None:
        """Have the optimizer use ``rate`` from the next step on."""
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = rate
