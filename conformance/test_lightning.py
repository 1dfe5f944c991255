"""Where Lightning itself breaks a guarantee: strict, so that a release that mends it shows.

Each part is written as Lightning's documentation writes it, and run by its real Trainer.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest
import torch
from ddp_conformance import Case, Evaluation, Loader, Sampler, Subject, parametrize_with_checks
from ddp_conformance.subjects_metrics import sample_value
from ddp_conformance.trainer_runs import UnwrappedStrategy, advice_ignored, quiet_trainer
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.overrides.distributed import UnrepeatedDistributedSampler
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from torchmetrics import MeanMetric

if TYPE_CHECKING:
    from ddp_conformance.pytest_frontend import BoundCheck

with warnings.catch_warnings():
    # PyG compiles with torch.jit when it is first imported, which torch 2.13 deprecates. The
    # warning is not ours to mend, and it is an error here.
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader as GraphLoader

BATCH = 3

# ---------------------------------------------------------------- modules


class Reporting(LightningModule):
    """Validates and learns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(1, 1)
        # A rank without samples is the check's choice.
        self.allow_zero_length_dataloader_with_multiple_devices = True


class LogsMeans(Reporting):
    """The mean of each batch, logged for the epoch, with its number of samples."""

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        values = values_of(batch["index"])
        self.log("value", values.mean(), sync_dist=True, batch_size=len(values))


class LogsGraphs(Reporting):
    """The mean over the graphs of each batch, logged as for any other batch."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("value", batch.y.mean(), sync_dist=True)


class LogsMetric(Reporting):
    """A metric with pooled state: the report is right for whatever reaches it."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = MeanMetric()

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self.mean.update(values_of(batch["index"]))
        self.log("value", self.mean, on_step=False, on_epoch=True)


class Silent(Reporting):
    """Only its loader is of interest."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Nothing is reported."""


def values_of(indices: Tensor) -> Tensor:
    return torch.tensor([sample_value(int(index)) for index in indices])


# ---------------------------------------------------------------- runs


def validated(case: Case, module: Reporting, loader: Any, **options: Any) -> tuple[Trainer, Any]:
    """The Trainer after a validation, and what it reports."""
    with advice_ignored():
        trainer = quiet_trainer(case, UnwrappedStrategy(), [], **options)
        reports = trainer.validate(module, loader, verbose=False)
    # A rank without samples reports nothing.
    return trainer, reports[0] if reports else None


def own_share(case: Case) -> range:
    """Every sample on one rank, once."""
    return range(case.rank, case.size, case.world_size)


def logged_mean(case: Case) -> Callable[[], Any]:
    loader = DataLoader(case.dataset, BATCH, sampler=own_share(case))
    return lambda: validated(case, LogsMeans(), loader, use_distributed_sampler=False)[1]


def graph(index: int) -> Data:
    """A graph of as many nodes as its number says."""
    return Data(x=torch.zeros(index % 4 + 1, 1), y=torch.tensor([sample_value(index)]))


def logged_graphs(case: Case) -> Callable[[], Any]:
    graphs = [graph(index) for index in own_share(case)]
    loader = GraphLoader(graphs, batch_size=BATCH)
    return lambda: validated(case, LogsGraphs(), loader, use_distributed_sampler=False)[1]


def padded_metric(case: Case) -> Callable[[], Any]:
    return lambda: validated(case, LogsMetric(), DataLoader(case.dataset, BATCH))[1]


def padded_loader(case: Case) -> Any:
    trainer, _ = validated_silently(case, DataLoader(case.dataset, BATCH))
    return trainer.val_dataloaders


class Stream(IterableDataset[dict[str, int]]):
    """All samples, in order, to whoever asks."""

    def __init__(self, case: Case) -> None:
        self.size = case.size

    def __iter__(self) -> Iterator[dict[str, int]]:
        return ({"index": index} for index in range(self.size))


def stream(case: Case) -> Any:
    loader = DataLoader(Stream(case), BATCH, num_workers=case.num_workers)
    trainer, _ = validated_silently(case, loader)
    return trainer.val_dataloaders


def unrepeated(case: Case) -> UnrepeatedDistributedSampler:
    """What the Trainer samples with to predict."""
    ranks = {"num_replicas": case.world_size, "rank": case.rank}
    return UnrepeatedDistributedSampler(case.dataset, shuffle=False, **ranks)


def validated_silently(case: Case, loader: Any) -> tuple[Trainer, Any]:
    """The Trainer with the loader that it made of this one."""
    return validated(case, Silent(), loader)


# ---------------------------------------------------------------- what is known

FLOORED = "Lightning#21859: the sum of the weights is divided by the ranks and rounded down"
NODES = "Lightning#12640, pyg#9829: without batch_size= a batch weighs as much as it has nodes"
PADDED = "Lightning#2398: validation is padded, and the repeated samples are counted"
ALONE = "with fewer samples than ranks only the ranks raise that have none"
UNSPLIT = "datasets#5360: iterable data sets are not split, neither over ranks nor over workers"

SUBJECTS = [
    Evaluation(logged_mean, name="lightning_logged_mean"),
    Evaluation(logged_graphs, name="lightning_logged_graphs"),
    Evaluation(padded_metric, name="lightning_padded_metric"),
    Loader(padded_loader, {"pads", "evaluates"}, name="lightning_padded_loader"),
    Loader(stream, {"iterable"}, name="lightning_stream"),
    Sampler(unrepeated, {"exact", "uneven"}, "lightning_unrepeated", min_size=1),
]

KNOWN: Mapping[str, Mapping[str, str]] = {
    "lightning_logged_mean": {"MET-01": FLOORED, "MET-03": FLOORED},
    "lightning_logged_graphs": {"MET-01": NODES, "MET-03": NODES},
    "lightning_padded_metric": {"MET-01": PADDED, "MET-03": PADDED},
    "lightning_padded_loader": {"SMP-03": PADDED},
    "lightning_stream": {"SMP-01": UNSPLIT, "SMP-05": UNSPLIT},
    "lightning_unrepeated": {"SMP-01": ALONE},
}


def known(subject: Subject) -> Mapping[str, str]:
    return KNOWN[subject.name]


@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning")
@parametrize_with_checks(SUBJECTS, expected_failures=known, world_size=(2,))
def test_lightning(subject: Subject, check: BoundCheck) -> None:
    check(subject)
