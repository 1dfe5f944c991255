"""Loaders, logging, loggers and callbacks of Lightning, run by its real Trainer."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from ddp_conformance import (
    Callback,
    Case,
    Evaluation,
    Guard,
    Leg,
    Loader,
    Sampler,
    SamplerWrapper,
    Subject,
    TrainLoop,
    Watch,
    Writer,
)
from ddp_conformance.metrics.subjects import sample_value
from ddp_conformance.windows.trainer_runs import (
    UnwrappedStrategy,
    advice_ignored,
    quiet_trainer,
)
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.overrides.distributed import UnrepeatedDistributedSampler
from lightning.pytorch.utilities import rank_zero_only
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Sampler as TorchSampler
from torchmetrics import MeanMetric

from conformance.ecosystem.frame.parts import Breach, Part, parametrize_with_parts
from conformance.ecosystem.training.lightning_fits import fitted
from conformance.ecosystem.training.lightning_loops import resumed_fit

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck

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


class LogsUnsynced(Reporting):
    """The mean of each batch, logged as for one process."""

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        values = values_of(batch["index"])
        self.log("value", values.mean(), batch_size=len(values))


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


def lightning_logged_mean(case: Case) -> Callable[[], Any]:
    loader = DataLoader(case.dataset, BATCH, sampler=own_share(case))
    return lambda: validated(case, LogsMeans(), loader, use_distributed_sampler=False)[1]


def lightning_unsynced_log(case: Case) -> Callable[[], Any]:
    loader = DataLoader(case.dataset, BATCH, sampler=own_share(case))
    return lambda: validated(case, LogsUnsynced(), loader, use_distributed_sampler=False)[1]


def graph(index: int) -> Data:
    """A graph of as many nodes as its number says."""
    return Data(x=torch.zeros(index % 4 + 1, 1), y=torch.tensor([sample_value(index)]))


def lightning_logged_graphs(case: Case) -> Callable[[], Any]:
    graphs = [graph(index) for index in own_share(case)]
    loader = GraphLoader(graphs, batch_size=BATCH)
    return lambda: validated(case, LogsGraphs(), loader, use_distributed_sampler=False)[1]


def lightning_padded_metric(case: Case) -> Callable[[], Any]:
    return lambda: validated(case, LogsMetric(), DataLoader(case.dataset, BATCH))[1]


def lightning_padded_loader(case: Case) -> Any:
    trainer, _ = validated_silently(case, DataLoader(case.dataset, BATCH))
    return trainer.val_dataloaders


class Stream(IterableDataset[dict[str, int]]):
    """All samples, in order, to whoever asks."""

    def __init__(self, case: Case) -> None:
        self.size = case.size

    def __iter__(self) -> Iterator[dict[str, int]]:
        return ({"index": index} for index in range(self.size))


def lightning_stream(case: Case) -> Any:
    loader = DataLoader(Stream(case), BATCH, num_workers=case.num_workers)
    trainer, _ = validated_silently(case, loader)
    return trainer.val_dataloaders


def validated_silently(case: Case, loader: Any) -> tuple[Trainer, Any]:
    """The Trainer with the loader that it made of this one."""
    return validated(case, Silent(), loader)


# ---------------------------------------------------------------- samplers


def lightning_unrepeated(case: Case) -> Any:
    return UnrepeatedDistributedSampler(
        case.dataset, num_replicas=case.world_size, rank=case.rank, shuffle=False
    )


def lightning_sampler_wrapper(case: Case, sampler: TorchSampler[Any]) -> Any:
    return DistributedSamplerWrapper(
        sampler, num_replicas=case.world_size, rank=case.rank, shuffle=False
    )


# ---------------------------------------------------------------- fits


def lightning_synced_stopping(case: Case) -> Iterator[dict[str, Any]]:
    return fitted(case, sync=True)


def lightning_unsynced_stopping(case: Case) -> Iterator[dict[str, Any]]:
    return fitted(case, sync=False)


# ---------------------------------------------------------------- guard


def lightning_rank_zero_only(case: Case) -> Callable[[Callable[[], object]], object]:
    def guard(action: Callable[[], object]) -> object:
        return rank_zero_only(action)()

    return guard


# ---------------------------------------------------------------- loggers


class Logging:
    """Logs one value for each record."""

    def __init__(self, logger: Any) -> None:
        self.logger = logger

    def __call__(self, number: int) -> None:
        self.logger.log_metrics({"loss": float(number)}, step=number)
        self.logger.save()


def lightning_csv_logger(case: Case) -> Logging:
    return Logging(CSVLogger(case.directory, name="run", version=0))


def lightning_tensorboard_logger(case: Case) -> Logging:
    return Logging(TensorBoardLogger(case.directory, name="run", version=0))


def logged_rows(directory: Path) -> list[int]:
    (file,) = directory.rglob("metrics.csv")
    with file.open(newline="") as opened:
        return [int(row["step"]) for row in csv.DictReader(opened)]


def logged_events(directory: Path) -> list[int]:
    files = sorted(directory.rglob("events.out.tfevents.*"))
    return [e.step for f in files for e in EventAccumulator(str(f)).Reload().Scalars("loss")]


def log_dir(writer: Logging) -> tuple[str]:
    return (writer.logger.log_dir,)


def lightning_resumed_fit(case: Case, leg: Leg, watch: Watch) -> None:
    resumed_fit(case, leg, watch)


PADDED = Breach(
    ("SMP-03",),
    "the Trainer puts a DistributedSampler into a validation loader, which repeats samples",
    "lightning/padded_validation.py",
    "Lightning#2398",
)

PARTS = [
    Part(
        Evaluation(lightning_logged_mean),
        "`self.log(name, mean, sync_dist=True, batch_size=n)`, each rank with its share",
        [
            Breach(
                ("MET-01", "MET-03"),
                "the sum of the weights is divided by the ranks and rounded down",
                "lightning/logged_mean.py",
                "Lightning#21859",
            )
        ],
    ),
    Part(
        Evaluation(lightning_unsynced_log),
        "`self.log(name, mean, batch_size=n)`, without `sync_dist`",
        [
            Breach(
                ("MET-01", "MET-03"),
                "each rank reports its own mean, as the documents of `sync_dist` say",
                "lightning/unsynced_log.py",
            )
        ],
    ),
    Part(
        Evaluation(lightning_logged_graphs),
        "`self.log(name, mean, sync_dist=True)` with PyG batches",
        [
            Breach(
                ("MET-01", "MET-03"),
                "without `batch_size=` a batch weighs as much as it has nodes",
                "lightning/logged_graphs.py",
                "Lightning#12640",
            )
        ],
    ),
    Part(
        Evaluation(lightning_padded_metric),
        "`trainer.validate(module, DataLoader(dataset))` with a pooled metric",
        [replace(PADDED, guarantees=("MET-01", "MET-03"))],
    ),
    Part(
        Loader(lightning_padded_loader, {"pads", "evaluates"}),
        "`trainer.validate(module, DataLoader(dataset))`, the loader that it makes",
        [PADDED],
    ),
    Part(
        Loader(lightning_stream, {"iterable"}),
        "`trainer.validate(module, DataLoader(IterableDataset()))`",
        [
            Breach(
                ("SMP-01", "SMP-05"),
                "iterable data sets are not split, neither over ranks nor over workers",
                "lightning/stream.py",
                "datasets#5360",
            )
        ],
    ),
    Part(
        Sampler(lightning_unrepeated, {"exact", "uneven", "evaluates"}, min_size=1),
        "`UnrepeatedDistributedSampler(dataset, shuffle=False)`, which `trainer.predict` uses",
        [
            Breach(
                ("SMP-01",),
                "with fewer samples than ranks those that get none fail an assert, and the others "
                "go on",
                "lightning/unrepeated.py",
            )
        ],
    ),
    Part(
        SamplerWrapper(lightning_sampler_wrapper, {"pads"}),
        "`DistributedSamplerWrapper(sampler)`, which the Trainer puts around a sampler",
        [
            Breach(
                ("SMP-06",),
                "it draws on every rank, and relies on equal random states",
                "lightning/sampler_wrapper.py",
                "Lightning#5145",
            )
        ],
    ),
    Part(
        Callback(lightning_synced_stopping, {"decides"}),
        "`EarlyStopping` and `ModelCheckpoint(save_top_k=2)`, the loss with `sync_dist=True`",
    ),
    Part(
        Callback(lightning_unsynced_stopping, {"decides"}),
        "`EarlyStopping` and `ModelCheckpoint(save_top_k=2)`, the loss without `sync_dist`",
        [
            Breach(
                ("CBK-02",),
                "ranks agree when to save, and each names the best by scores of its own",
                "lightning/unsynced_checkpoint.py",
            )
        ],
    ),
    Part(
        Writer(lightning_csv_logger, {"tells_paths"}, records=logged_rows, paths=log_dir),
        "`CSVLogger(folder, version=0)`",
    ),
    Part(
        Writer(lightning_tensorboard_logger, {"tells_paths"}, records=logged_events, paths=log_dir),
        "`TensorBoardLogger(folder, version=0)`",
    ),
    Part(
        TrainLoop(lightning_resumed_fit, {"pads", "resumes", "resumes_elsewhere"}, batch_size=4),
        "`trainer.save_checkpoint(path)` after an epoch, and `trainer.fit(ckpt_path=path)`",
        [
            Breach(
                ("DET-02",),
                "with workers the first epoch after a resumption has the order of epoch 0",
                "lightning/resumed_order.py",
                "Lightning#21938",
            ),
            Breach(
                ("DET-03",),
                "a checkpoint has no random states",
                "lightning/random_states.py",
            ),
        ],
    ),
    Part(
        Guard(lightning_rank_zero_only),
        "`@rank_zero_only`, before there is a Trainer",
        [
            Breach(
                ("WRT-05",),
                "under Lightning's own launcher the first rank of every machine is taken for rank "
                "0 until a Trainer has set it",
                "lightning/rank_zero_only.py",
            )
        ],
    ),
]


@parametrize_with_parts(PARTS, share_ranks=True)
def test_lightning(subject: Subject, check: BoundCheck) -> None:
    check(subject)
