"""Training on one rank or many: shard by rank, tell the sampler the epoch, reduce sums."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from ddp_reference.saliency import mit1003_loader, mit1003_loader_hdf5
from ddp_reference.saliency.dataset import DatasetError, Item
from ddp_reference.saliency.samplers import EpochShuffleSampler

TrainSampler: TypeAlias = DistributedSampler[Item] | EpochShuffleSampler


@dataclass(frozen=True, slots=True)
class Config:
    """What a run is made of."""

    data_path: Path
    """A folder of image files, or an HDF5 file."""
    epochs: int = 5
    batch_size: int = 8
    """Samples in a batch of one rank."""
    num_workers: int = 0
    image_size: tuple[int, int] = (64, 48)
    """Width and height in pixels."""
    learning_rate: float = 1e-2
    seed: int = 42
    val_fraction: float = 0.1
    log: Path | None = None
    """The file to which rank 0 writes one line of JSON for each epoch; None for none."""


@dataclass(frozen=True, slots=True)
class EpochResult:
    """What is logged of an epoch; the same on all ranks."""

    epoch: int
    train_loss: float
    """Mean over the delivered samples, padding included, while training."""
    val_loss: float
    """Mean over the validation set, each sample counted once."""
    val_nss: float
    """Normalised scanpath saliency, mean over the validation set; 0 is chance."""


class SaliencyNet(nn.Module):
    """A small convolutional network: image [batch, 3, h, w] to logits [batch, 1, h, w]."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(width, width, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(width, 1, 5, padding=2),
        )

    def forward(self, image: Tensor) -> Tensor:
        """Logits of the distribution of fixations over the pixels."""
        logits: Tensor = self.layers(image)
        return logits


def kl_divergence(logits: Tensor, saliency: Tensor) -> Tensor:
    """Kullback-Leibler divergence of each sample's prediction from its map: float32 [batch]."""
    target = saliency.flatten(1) + 1e-6
    target = target / target.sum(1, keepdim=True)
    predicted = functional.log_softmax(logits.flatten(1), 1)
    return (target * (target.log() - predicted)).sum(1)


def normalised_scanpath_saliency(logits: Tensor, fixations: Tensor) -> Tensor:
    """Mean of the standardised prediction at the fixations of each sample: float32 [batch].

    A sample without fixations counts as 0, which is chance.
    """
    predicted = functional.softmax(logits.flatten(1), 1)
    deviation = predicted.std(1, keepdim=True).clamp_min(1e-12)
    standardised = (predicted - predicted.mean(1, keepdim=True)) / deviation
    points = fixations.flatten(1)
    return (standardised * points).sum(1) / points.sum(1).clamp_min(1.0)


class Trainer:
    """Trains :class:`SaliencyNet` as one of ``world_size`` ranks.

    With ``world_size > 1`` the default process group must be initialised. Raises
    :class:`~ddp_reference.saliency.dataset.DatasetError` for data that cannot be used.
    """

    def __init__(
        self,
        config: Config,
        world_size: int = 1,
        rank: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config = config
        self.world_size = world_size
        self.rank = rank
        self.device = torch.device(device)
        self.train_loader, self.val_loader = create_together(config, world_size, rank)
        torch.manual_seed(config.seed)
        self.network = SaliencyNet().to(self.device)
        self.model: nn.Module = self.network
        if world_size > 1:
            self.model = DistributedDataParallel(self.network)
        self.optimizer = torch.optim.Adam(self.network.parameters(), config.learning_rate)

    def fit(self) -> Iterator[EpochResult]:
        """Train, and give the result of each epoch as it ends."""
        for epoch in range(self.config.epochs):
            train_loss = self.train_epoch(epoch)
            val_loss, val_nss = self.validate()
            result = EpochResult(epoch, train_loss, val_loss, val_nss)
            self._log(result)
            yield result

    def train_epoch(self, epoch: int) -> float:
        """One pass over this rank's share; returns the mean loss over all ranks."""
        cast(TrainSampler, self.train_loader.sampler).set_epoch(epoch)
        self.model.train()
        losses = []
        for batch in self.train_loader:
            self.optimizer.zero_grad()
            loss = kl_divergence(
                self.model(batch["image"].to(self.device)), batch["saliency"].to(self.device)
            )
            loss.mean().backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            losses.append(loss.detach())
        (mean,) = self._mean_over_ranks([torch.cat(losses)])
        return mean

    @torch.no_grad()
    def validate(self) -> tuple[float, float]:
        """Loss and normalised scanpath saliency over the whole validation set.

        The bare network runs here: ranks may have different numbers of batches, so
        nothing in the loop may be a collective.
        """
        self.network.eval()
        losses, scores = [torch.zeros(0)], [torch.zeros(0)]
        for batch in self.val_loader:
            logits = self.network(batch["image"].to(self.device)).cpu()
            losses.append(kl_divergence(logits, batch["saliency"]))
            scores.append(normalised_scanpath_saliency(logits, batch["fixations"]))
        loss, score = self._mean_over_ranks([torch.cat(losses), torch.cat(scores)])
        return loss, score

    def _mean_over_ranks(self, values: list[Tensor]) -> list[float]:
        """The mean over the samples of all ranks, of each of ``values`` [samples]."""
        sums = torch.stack([each.double().sum() for each in values])
        totals = torch.cat([sums, sums.new_tensor([float(len(values[0]))])]).to(self.device)
        if self.world_size > 1:
            dist.all_reduce(totals)
        means: list[float] = (totals[:-1] / totals[-1]).tolist()
        return means

    def _log(self, result: EpochResult) -> None:
        if self.rank != 0 or self.config.log is None:
            return
        mode = "w" if result.epoch == 0 else "a"
        with self.config.log.open(mode, encoding="utf-8") as log:
            log.write(json.dumps(asdict(result)) + "\n")


def create_together(
    config: Config, world_size: int, rank: int
) -> tuple[DataLoader[Item], DataLoader[Item]]:
    """The loaders, or on all ranks the error of the first rank that could not make them.

    A rank that raised alone would leave the others waiting for it in the next collective.
    """
    loaders, problem = None, None
    try:
        loaders = create_loaders(config, world_size, rank)
    except DatasetError as error:
        problem = str(error)
    problems: list[str | None] = [problem]
    if world_size > 1:
        problems = [None] * world_size
        dist.all_gather_object(problems, problem)
    for text in filter(None, problems):
        raise DatasetError(text)
    assert loaders is not None
    return loaders


def create_loaders(
    config: Config, world_size: int, rank: int
) -> tuple[DataLoader[Item], DataLoader[Item]]:
    """Loaders of the form that ``config.data_path`` has."""
    form: Any = mit1003_loader_hdf5 if config.data_path.is_file() else mit1003_loader
    loaders: tuple[DataLoader[Item], DataLoader[Item]] = form.create_mit1003_dataloaders(
        config.data_path,
        batch_size=config.batch_size,
        num_workers=config.num_workers,
        image_size=config.image_size,
        seed=config.seed,
        world_size=world_size,
        rank=rank,
        val_fraction=config.val_fraction,
    )
    return loaders
