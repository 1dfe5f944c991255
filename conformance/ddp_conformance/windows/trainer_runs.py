"""Runs of Lightning's Trainer, with its real order of hooks.

Imported late: users without Lightning can check parts of other kinds.
"""

from __future__ import annotations

import functools
import gc
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

from ddp_conformance.framework import nemesis
from ddp_conformance.framework.case import Case
from ddp_conformance.framework.history import Record
from ddp_conformance.lockstep.machines import Place
from ddp_conformance.windows.data import Split, WindowRun
from ddp_conformance.windows.history import (
    Happening,
    Stage,
    WindowEvent,
    WindowPart,
    WindowSample,
)

if TYPE_CHECKING:
    from ddp_conformance.windows.subjects import DataModule

EPOCHS = 3
"""Windows that move every second epoch have moved by then, so that two would accuse them."""

IGNORED = (
    # Advice for real training, and Lightning's own use of a name that torch retires.
    ".*does not have many workers",
    "Consider setting .persistent_workers=True.",
    ".*isinstance.treespec, LeafSpec",
    ".*configure_optimizers. returned .None.",
    ".*is smaller than the logging interval",
    "Starting from v1.9.0, .tensorboardX. has been removed",
    "You defined a .validation_step. but have no .val_dataloader",
    "Using .DistributedSampler. with the dataloaders",
    "Trying to infer the .batch_size. from an ambiguous collection",
    # Ranks with fewer samples than others are the subject's choice.
    ".*Total length of .* across ranks is zero",
    "The ``compute`` method of metric",
)


class CaseEnvironment(ClusterEnvironment):
    """The ranks of the running test: they exist already, and so does their process group."""

    def __init__(self, case: Case, machines: int = 1) -> None:
        self._place = Place(case.rank, case.world_size, machines)

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return "localhost"

    @property
    def main_port(self) -> int:
        return 0

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self._place.world_size

    def set_world_size(self, size: int) -> None:
        """Do nothing: Lightning's count is the one that we gave it."""

    def global_rank(self) -> int:
        return self._place.rank

    def set_global_rank(self, rank: int) -> None:
        """Do nothing, as for the world size."""

    def local_rank(self) -> int:
        return self._place.local_rank

    def node_rank(self) -> int:
        return self._place.machine


class UnwrappedStrategy(DDPStrategy):
    """DDP without gradients: ranks that differ in their number of batches do not hang."""

    def configure_ddp(self) -> None:
        """Do nothing: there is nothing to reduce."""


class Passive(LightningModule):
    """A model that takes batches and learns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.unused = nn.Linear(1, 1)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Only the data are of interest."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Step as in training."""

    def configure_optimizers(self) -> None:
        """None is needed."""


class TrainerObserver(Callback):
    """Keeps what reaches the model. The first of the callbacks: it sees a hook before they act."""

    def __init__(self, subject: DataModule, datamodule: Any, rank: int) -> None:
        self.records: list[Record] = []
        self._subject = subject
        self._datamodule = datamodule
        self._rank = rank
        self._epoch = 0
        self._alive: list[object] = []
        self._seen_parts: set[tuple[Stage, int]] = set()

    def happened(self, what: Happening) -> None:
        """Note an event in the order of this rank."""
        nemesis.pause()
        self.records.append(WindowEvent(self._rank, self._epoch, what))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epoch = trainer.current_epoch
        self.happened("epoch start")

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.happened("batch start")
        self._deliver("train", trainer.current_epoch, batch_idx, batch)
        self._note_parts("train", trainer.current_epoch, trainer.train_dataloader)

    def on_train_batch_end(self, *arguments: Any) -> None:
        self.happened("batch end")

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        stage: Stage = "sanity" if trainer.sanity_checking else "val"
        self._deliver(stage, trainer.current_epoch, batch_idx, batch)
        self._note_parts(stage, trainer.current_epoch, trainer.val_dataloaders)

    def _deliver(self, stage: Stage, epoch: int, step: int, batch: Any) -> None:
        announced = self._subject.announced(self._datamodule, _split(stage))
        self.records += [
            WindowSample(
                self._rank,
                stage,
                epoch,
                step,
                stamp.index,
                stamp.window,
                stamp.version,
                announced.window,
                announced.version,
                stamp.token,
                stamp.rank,
                stamp.worker,
                stamp.repeated,
            )
            for stamp in self._subject.stamps(batch)
        ]

    def _note_parts(self, stage: Stage, epoch: int, loader: object) -> None:
        if (stage, epoch) in self._seen_parts:
            return
        self._seen_parts.add((stage, epoch))
        announced = self._subject.announced(self._datamodule, _split(stage))
        for name, part in {**announced.parts, "loader": loader}.items():
            identity = self._identity(part)
            self.records.append(
                WindowPart(self._rank, stage, epoch, announced.version, name, identity)
            )

    def end_workers(self) -> None:
        """End the workers of all loaders that were in use.

        Collected in a cycle, an iterator finds its queues closed already: no message reaches
        its persistent workers, and torch waits 5 s for each of them.
        """
        for part in self._alive:
            iterator: Any = getattr(part, "_iterator", None)
            if hasattr(iterator, "_shutdown_workers"):
                iterator._shutdown_workers()

    def _identity(self, part: object) -> int:
        for number, known in enumerate(self._alive):
            if known is part:
                return number
        self._alive.append(part)
        return len(self._alive) - 1


def observe_fit(
    subject: DataModule, case: Case, sanity_steps: int, **options: Any
) -> Iterator[Record]:
    """What one run of :data:`EPOCHS` epochs delivered to this rank, from a new data module."""
    run: WindowRun = subject.make(case)
    observer = TrainerObserver(subject, run.datamodule, case.rank)
    _watch(run.datamodule, "setup", functools.partial(observer.happened, "setup()"))
    _watch(
        run.datamodule,
        "train_dataloader",
        functools.partial(observer.happened, "train_dataloader()"),
    )
    with advice_ignored():
        trainer = quiet_trainer(
            case,
            UnwrappedStrategy(),
            [observer, *run.callbacks],
            reload_dataloaders_every_n_epochs=run.reload_every,
            use_distributed_sampler=run.use_distributed_sampler,
            num_sanity_val_steps=sanity_steps,
            **options,
        )
        trainer.fit(Passive(), datamodule=run.datamodule)
    records = observer.records
    observer.end_workers()
    # Loaders are in cycles between Trainer and loops; left to the collector, that is after the
    # test.
    del run, observer, trainer
    gc.collect()
    yield from records


def quiet_trainer(
    case: Case,
    strategy: DDPStrategy,
    callbacks: list[Callback],
    max_epochs: int = EPOCHS,
    machines: int = 1,
    **options: Any,
) -> Trainer:
    """A Trainer on this rank of the running test, without files and output.

    Raises ``RuntimeError`` without a process group: Lightning would start one of its own.
    """
    if not dist.is_initialized():
        raise RuntimeError(
            "a run of the Trainer needs the process group of the test; remove backend=None "
            "from its ddp mark"
        )
    return Trainer(
        max_epochs=max_epochs,
        accelerator="cpu",
        devices=case.world_size // machines,
        num_nodes=machines,
        strategy=strategy,
        plugins=[CaseEnvironment(case, machines)],
        callbacks=callbacks,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **options,
    )


def _watch(datamodule: Any, method: str, happened: Callable[[], None]) -> None:
    original = getattr(datamodule, method)

    # Lightning follows ``__wrapped__`` when it looks for overridden hooks.
    @functools.wraps(original)
    def watched(*arguments: Any, **options: Any) -> Any:
        happened()
        return original(*arguments, **options)

    setattr(datamodule, method, watched)


@contextmanager
def advice_ignored() -> Iterator[None]:
    """Ignore Lightning's advice for real training."""
    log = logging.getLogger("lightning.pytorch")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # Lightning warns on rank 0 alone: if the warning were an error, the other ranks would
            # wait in a collective for ever.
            warnings.simplefilter("default")
            for message in IGNORED:
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        log.setLevel(level)


def _split(stage: Stage) -> Split:
    return "train" if stage == "train" else "val"
