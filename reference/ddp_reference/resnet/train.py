"""The program: one run on one rank or many, with an exit code that tells the truth.

Works under ``torchrun`` and by itself: then Lightning starts ranks 1 and up as copies
of this command.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

import torch.distributed as dist
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.utilities import rank_zero_only

from ddp_reference.leaving import leave_group
from ddp_reference.resnet.agreement import ConfigError
from ddp_reference.resnet.config import Settings, parse
from ddp_reference.resnet.data import ImageNetDataModule
from ddp_reference.resnet.images import CorruptImageError
from ddp_reference.resnet.index import list_classes
from ddp_reference.resnet.module import ResNetModule
from ddp_reference.resnet.resolution import ResolutionScheduleCallback
from ddp_reference.resnet.run_logger import RunLogger
from ddp_reference.resnet.text_log import TextLoggingCallback
from ddp_reference.saying import say_once

END_SECONDS = 60.0
"""How long rank 0 waits for the ranks that it has started, once it has succeeded."""
FAILURE_SECONDS = 2.0
"""How long rank 0 waits once it has failed: enough for ranks that have raised the same error, and
no use to ranks that wait in a collective for rank 0."""

# What gloo and the store say when a peer's process has ended.
LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says; returns the exit code.

    2 for a configuration or data that cannot be used, said once by one rank; 1 for a
    run that failed; other errors are not caught.
    """
    try:
        settings = parse(arguments)
        return run(settings)
    except ConfigError as error:
        text = str(error)
        say_once(lambda: _complain(text), is_first=_rank() == 0)
        return 2
    except CorruptImageError as error:
        _complain(_last_line(error), after_bar=True)
        return 1
    except RuntimeError as error:
        if not any(sign in str(error) for sign in LOST_PEER):
            raise
        text = "stopped, because another rank has ended; what stopped that one is said there"
        _complain(text, after_bar=True)
        return 1


def run(settings: Settings) -> int:
    """Fit, then test the best checkpoint; returns the exit code of the ranks started here."""
    seed_everything(settings.seed)
    logger = RunLogger(settings.log_dir, settings.name)
    trainer = build_trainer(settings, logger)
    datamodule = build_datamodule(settings)
    try:
        trainer.fit(build_module(settings), datamodule, ckpt_path=settings.resume)
        trainer.test(datamodule=datamodule, ckpt_path="best", verbose=settings.progress)
    except BaseException:
        leave_gloo()
        end_children(trainer, FAILURE_SECONDS)
        raise
    finally:
        logger.close()
    leave_gloo()
    return end_children(trainer, END_SECONDS)


def build_datamodule(settings: Settings) -> ImageNetDataModule:
    """The data module of a run."""
    config = settings.train
    return ImageNetDataModule(
        settings.data,
        batch_size=config.batch_size,
        num_workers=config.workers,
        resolution=config.schedule.at(0),
        val_resolution=config.val_resolution,
        seed=settings.seed,
        index=settings.index,
        check=settings.check,
    )


def build_module(settings: Settings) -> ResNetModule:
    """The model of a run, with an output for each class folder of the data."""
    config = settings.train
    return ResNetModule(
        len(list_classes(settings.data, "train")),
        config.blocks,
        config.width,
        config.stem,
        learning_rate=config.learning_rate,
        warmup_epochs=config.warmup_epochs,
        example_resolution=config.val_resolution,
    )


def build_trainer(settings: Settings, logger: RunLogger) -> Trainer:
    """The trainer of a run; DDP whenever there is more than one rank."""
    config = settings.train
    nodes = int(os.environ.get("WORLD_SIZE", config.devices)) // config.devices
    return Trainer(
        accelerator=config.accelerator,
        devices=config.devices,
        num_nodes=nodes,
        strategy="ddp" if nodes * config.devices > 1 else "auto",
        precision=config.precision,
        max_epochs=config.epochs,
        logger=logger,
        callbacks=build_callbacks(settings),
        # The loader of an epoch carries its resolution and its order.
        reload_dataloaders_every_n_epochs=1,
        # The data module splits by itself; Lightning would pad validation.
        use_distributed_sampler=False,
        enable_progress_bar=settings.progress,
        enable_model_summary=False,
        # Nothing is logged per step; the default warns in epochs of fewer than 50.
        log_every_n_steps=1,
    )


def build_callbacks(settings: Settings) -> list[Callback]:
    """Resolution, text log, checkpoints and, if wanted, the progress bar."""
    # At the end of an epoch its resolution and learning rate are settled, so that a
    # resumed run repeats an uninterrupted one; at the end of validation they are not.
    checkpoints = ModelCheckpoint(
        filename="{epoch:03d}",
        monitor="val_accuracy",
        mode="max",
        save_last=True,
        save_on_train_epoch_end=True,
    )
    bar = [TQDMProgressBar()] if settings.progress else []
    schedule = ResolutionScheduleCallback(settings.train.schedule)
    return [schedule, TextLoggingCallback(), checkpoints, *bar]


def leave_gloo() -> None:
    """Leave a gloo group, which Lightning leaves to the interpreter's exit.

    After a failure this also closes the connections on which other ranks wait. NCCL groups
    are left to Lightning, which destroys them at exit.
    """
    if dist.is_available() and dist.is_initialized() and dist.get_backend() == "gloo":
        leave_group()


def end_children(trainer: Trainer, seconds: float) -> int:
    """Wait for the end of the ranks that this one has started; 0 if all ended well, else 1.

    Those that live on after ``seconds`` are killed: in a collective's C++ code they
    would not hear a milder signal. Lightning itself ends without looking at the
    others' exit codes.
    """
    children = getattr(trainer.strategy.launcher, "procs", [])
    deadline = time.monotonic() + seconds
    for child in children:
        _end(child, max(0.0, deadline - time.monotonic()))
    return int(any(child.returncode != 0 for child in children))


def _end(child: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _complain(text: str, after_bar: bool = False) -> None:
    """Print an error on a line of its own; a progress bar leaves the cursor at its end."""
    start = "\n" if after_bar else ""
    print(f"{start}error: rank {_rank()}: {text}", file=sys.stderr, flush=True)


def _rank() -> int:
    """The rank as Lightning read it from the environment, before there is a process group."""
    return int(getattr(rank_zero_only, "rank", None) or 0)


def _last_line(error: Exception) -> str:
    """The message alone; a loader's worker sends its traceback before it."""
    line = str(error).strip().splitlines()[-1]
    return line.removeprefix(f"{type(error).__module__}.{type(error).__qualname__}: ")
