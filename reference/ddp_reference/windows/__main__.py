"""Train on moving windows: ``python -m ddp_reference.windows DATA --epochs N``.

Several ranks, by Lightning's launcher or by torchrun::

    python -m ddp_reference.windows DATA --epochs 5 --devices 2
    torchrun --nproc-per-node=2 -m ddp_reference.windows DATA --epochs 5

Exit code 0 after a whole run, 2 for arguments that cannot be used, 1 for a failure.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence

import torch
import torch.distributed as dist
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import TensorBoardLogger

from ddp_reference.leaving import leave_group
from ddp_reference.windows.archive import ArchiveError, feature_count
from ddp_reference.windows.config import RunConfig, launched_by_torchrun, read_config
from ddp_reference.windows.datamodule import GNNDataModule
from ddp_reference.windows.model import WindowGNN
from ddp_reference.windows.textlog import TextLog
from ddp_reference.windows.window import DateWindow, first_window


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    config, problem = None, None
    try:
        config = read_config(argv)
    except ValueError as error:
        problem = str(error)
    try:
        if _report(problem) or config is None:
            return 2
        return _train(config)
    finally:
        leave_group()


def _report(problem: str | None) -> bool:
    """Print the first rank's problem, once; tell whether any rank has one.

    Under torchrun all ranks check at the same time, so they compare. Lightning's launcher
    starts the others once the first has passed: whoever fails here is the only one.
    """
    problems: list[str | None] = [problem]
    if launched_by_torchrun():
        # Lightning uses the group that is there. A second one would hang on torchrun's store.
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        problems = [None] * dist.get_world_size()
        dist.all_gather_object(problems, problem)
    failed = [rank for rank, text in enumerate(problems) if text is not None]
    if failed and (len(problems) == 1 or failed[0] == dist.get_rank()):
        print(f"error: {problem}", file=sys.stderr, flush=True)
    if failed and dist.is_initialized():
        dist.barrier()  # torchrun stops all ranks once one has ended
    return bool(failed)


def _train(config: RunConfig) -> int:
    if config.verbose:
        logging.basicConfig(level=logging.INFO)
    # The archive is small and local; workers would not be the bottleneck.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    seed_everything(config.seed, verbose=False)
    callback = config.window_callback()
    trainer = make_trainer(config, callback)
    try:
        trainer.fit(
            WindowGNN(features=feature_count(config.root)),
            datamodule=make_data_module(config, callback.first_train_window()),
            ckpt_path=config.last_checkpoint if config.resume else None,
        )
    except ArchiveError as error:
        print(f"error on rank {trainer.global_rank}: {error}", file=sys.stderr)
        return 1
    return 0


def make_data_module(config: RunConfig, train: DateWindow) -> GNNDataModule:
    """The data of the run, on a first training window and the first validation window."""
    val = first_window(config.val_dates, config.val_window_days)
    return GNNDataModule(
        config.root,
        *(train.start, train.end, val.start, val.end),
        batch_size=config.batch_size,
        num_workers=config.workers,
        seed=config.seed,
    )


def make_trainer(config: RunConfig, callback: Callback) -> Trainer:
    """The trainer of the run. Every path is fixed, so that all ranks agree on it."""
    checkpoints = ModelCheckpoint(
        dirpath=config.last_checkpoint.parent,
        filename="best",
        monitor="val_loss",
        save_last=True,
        # At the end of validation the windows of the next epoch are not yet in force.
        save_on_train_epoch_end=True,
        enable_version_counter=False,
    )
    return Trainer(
        accelerator=config.accelerator,
        devices=config.devices,
        num_nodes=config.nodes,
        strategy="ddp" if config.devices * config.nodes > 1 else "auto",
        max_epochs=config.epochs,
        reload_dataloaders_every_n_epochs=1,
        log_every_n_steps=1,
        callbacks=[TextLog(config.log_dir / "train.log"), callback, TQDMProgressBar(), checkpoints],
        logger=TensorBoardLogger(config.log_dir, name="tensorboard", version=0),
    )


if __name__ == "__main__":
    sys.exit(main())
