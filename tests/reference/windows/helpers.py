"""What several test modules of the windows system need."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from ddp_reference.windows.callbacks import WindowCallback, data_module
from ddp_reference.windows.datamodule import GNNDataModule
from ddp_reference.windows.model import WindowGNN
from lightning.pytorch import Callback, LightningModule, Trainer

REPOSITORY = Path(__file__).parents[3]
LAUNCH_LIMIT = 120
"""Seconds for two ranks to start, train and end; they need about 10 on two idle cores."""
FEATURES = 5
LIGHTNING_WARNINGS = [
    # Lightning's advice for real data, and its own use of a name that torch retires.
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]


@dataclass(frozen=True)
class Delivery:
    """One sample that reached the model, as the sample itself tells it."""

    stage: str
    epoch: int
    sample: int
    bin_name: str
    window: str
    version: int
    counter: int
    token: str
    rank: int
    worker: int
    repeated: bool


class Recorder(Callback):
    """Keeps every delivery, and every sanity check's apart from them."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._keep("train", trainer, batch, data_module(trainer).train_version)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        stage = "sanity" if trainer.sanity_checking else "val"
        self._keep(stage, trainer, batch, data_module(trainer).val_version)

    def _keep(self, stage: str, trainer: Trainer, batch: Any, counter: int) -> None:
        for k in range(batch.num_graphs):
            self.deliveries.append(
                Delivery(
                    stage=stage,
                    epoch=trainer.current_epoch,
                    sample=int(batch.sample_id[k]),
                    bin_name=batch.bin_name[k],
                    window=batch.window_id[k],
                    version=int(batch.version[k]),
                    counter=counter,
                    token=batch.token[k],
                    rank=int(batch.origin[k, 0]),
                    worker=int(batch.origin[k, 1]),
                    repeated=bool(batch.repeated[k]),
                )
            )

    def windows(self, stage: str) -> list[list[str]]:
        """The windows delivered in each epoch that delivered anything."""
        chosen = [d for d in self.deliveries if d.stage == stage]
        epochs = sorted({d.epoch for d in chosen})
        return [sorted({d.window for d in chosen if d.epoch == epoch}) for epoch in epochs]

    def as_json(self) -> list[dict[str, Any]]:
        return [asdict(delivery) for delivery in self.deliveries]


def make_trainer(callbacks: Sequence[Callback], epochs: int, **options: Any) -> Trainer:
    """A quiet single-process trainer."""
    quiet: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "reload_dataloaders_every_n_epochs": 1,
    }
    return Trainer(max_epochs=epochs, callbacks=[*callbacks], **quiet | options)


def run(
    data: GNNDataModule, callback: WindowCallback, epochs: int, **options: Any
) -> tuple[Recorder, WindowGNN]:
    """Train a fresh model and return what was delivered to it."""
    recorder, model = Recorder(), WindowGNN(FEATURES, hidden=4)
    make_trainer([recorder, callback], epochs, **options).fit(model, datamodule=data)
    return recorder, model


def launch(arguments: Sequence[str | Path], *, torchrun: bool) -> subprocess.CompletedProcess[str]:
    """Run python with ``arguments`` in a process of its own, on two ranks under torchrun.

    Nothing outlives the call: ranks that hang are stopped with their launcher, and as a
    group, because a rank that is left would hold the pipes open.
    """
    elastic = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    command = [sys.executable, *(elastic if torchrun else []), *map(str, arguments)]
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=LAUNCH_LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
            pytest.fail(f"{command} ran longer than {LAUNCH_LIMIT} s\n{stdout}\n{stderr}")
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def clean_environment() -> dict[str, str]:
    """This process's variables without those of a launcher, on the loopback interface."""
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "MASTER_", "TORCHELASTIC_", "PL_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(launcher)}
    return kept | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def fields(line: str) -> dict[str, str]:
    """The ``name=value`` pairs of a line of the text log."""
    return dict(_pairs(line))


def _pairs(line: str) -> Iterator[tuple[str, str]]:
    for word in line.split():
        name, found, value = word.partition("=")
        if found:
            yield name, value
