"""What one run of the program does: arguments in, one checked record out."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import NoReturn

from ddp_reference.windows.archive import archive_span
from ddp_reference.windows.callbacks import (
    MODES,
    Mode,
    ResampleDataCallback,
    SequentialDataCallback,
    check_disjoint,
    check_fits,
    check_positive,
)
from ddp_reference.windows.window import DateWindow, parse_date

_VAL_SHARE = 5
"""The share that is for validation: without dates, the last fifth of the archive."""


class ConfigError(ValueError):
    """The arguments cannot be used; the text says what to change."""


@dataclass(frozen=True)
class RunConfig:
    """A run, with every default settled and every argument checked."""

    root: Path
    """Folder of the archive."""
    log_dir: Path
    """The folder to which the run writes; fixed before any process is launched, so equal on all
    ranks."""
    train_dates: DateWindow
    """The span of dates in which training windows may lie."""
    val_dates: DateWindow
    """The span of dates in which validation windows may lie."""
    epochs: int
    """Epochs in all, those before a resume included."""
    mode: Mode
    """How windows move."""
    window_days: int
    """Length of a training window."""
    val_window_days: int
    """Length of a validation window."""
    stride_days: int
    """Step of sequential windows."""
    resample_val: bool
    """Whether validation windows move as well."""
    batch_size: int
    """Graphs in a batch of one rank."""
    workers: int
    """DataLoader workers of one rank."""
    seed: int
    """Fixes model, order and random windows."""
    devices: int
    """Ranks on this machine."""
    nodes: int
    """Machines."""
    accelerator: str
    """``cpu`` or ``cuda``."""
    resume: bool
    """Go on from the last checkpoint in ``log_dir``."""
    verbose: bool
    """Show the rebuild log of every rank."""

    @property
    def last_checkpoint(self) -> Path:
        """The checkpoint that a resume starts from."""
        return self.log_dir / "checkpoints" / "last.ckpt"

    def window_callback(self) -> ResampleDataCallback | SequentialDataCallback:
        """The callback that moves the windows of this run."""
        train, val = self.train_dates, self.val_dates
        if self.mode == "sequential" and not self.resample_val:
            return SequentialDataCallback(
                train.start, train.end, self.window_days, self.stride_days
            )
        return ResampleDataCallback(
            *(train.start, train.end, val.start, val.end),
            train_window_days=self.window_days,
            val_window_days=self.val_window_days,
            mode=self.mode,
            resample_val=self.resample_val,
            seq_stride_days=self.stride_days,
            seed=self.seed,
        )


def read_config(argv: Sequence[str] | None, environ: Mapping[str, str] = os.environ) -> RunConfig:
    """Read and check the command line against the archive and the launcher.

    Raises:
        ValueError: anything that would stop the run later, in one sentence.
    """
    args = _parser().parse_args(argv)
    devices, nodes = _ranks(args.devices, environ)
    train_dates, val_dates = _dates(args)
    config = RunConfig(
        root=args.root,
        log_dir=args.log_dir.absolute(),
        train_dates=train_dates,
        val_dates=val_dates,
        epochs=args.epochs,
        mode=args.mode,
        window_days=args.window_days,
        val_window_days=args.val_window_days,
        stride_days=args.stride_days,
        resample_val=args.resample_val,
        batch_size=args.batch_size,
        workers=args.workers,
        seed=args.seed,
        devices=devices,
        nodes=nodes,
        accelerator=args.accelerator,
        resume=args.resume,
        verbose=args.verbose,
    )
    _check(config)
    return config


def launched_by_torchrun(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether all ranks run already, and torchrun's agent keeps the store for them."""
    return "TORCHELASTIC_RUN_ID" in environ


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing: under a launcher, every rank would print its own usage."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m ddp_reference.windows",
        description="Train a graph network on date windows that move through an archive.",
    )
    add = parser.add_argument
    add("root", type=Path, metavar="DATA", help="folder made by ddp_reference.windows.make_data")
    add("--epochs", type=int, required=True, help="epochs in all")
    add("--mode", choices=MODES, default="random", help="how training windows move")
    add("--window-days", type=int, default=14, help="length of a training window")
    add("--val-window-days", type=int, default=3, help="length of a validation window")
    add("--stride-days", type=int, default=1, help="step of sequential windows")
    add("--resample-val", action="store_true", help="move the validation window as well")
    for split in ("train", "val"):
        for edge in ("start", "end"):
            add(f"--{split}-{edge}", metavar="DATE", help="default: taken from the archive")
    add("--batch-size", type=int, default=8, help="graphs in a batch of one rank")
    add("--workers", type=int, default=0, help="DataLoader workers of one rank")
    add("--seed", type=int, default=42)
    add("--devices", type=int, help="ranks on this machine; default: torchrun's, else 1")
    add("--accelerator", choices=("cpu", "cuda"), default="cpu")
    add("--log-dir", type=Path, default=Path("runs/windows"), help="logs and checkpoints")
    add("--resume", action="store_true", help="go on from the last checkpoint in --log-dir")
    add("--verbose", action="store_true", help="show the rebuild log of every rank")
    return parser


def _ranks(devices: int | None, environ: Mapping[str, str]) -> tuple[int, int]:
    """Ranks on this machine, and machines; torchrun has decided both where it launched us."""
    if not launched_by_torchrun(environ):
        check_positive(1 if devices is None else devices, "--devices")
        return devices or 1, 1
    local, world = int(environ["LOCAL_WORLD_SIZE"]), int(environ["WORLD_SIZE"])
    if devices not in (None, local):
        raise ConfigError(
            f"--devices is {devices}, but torchrun launched {local} on this machine; leave "
            "--devices out"
        )
    return local, world // local


def _dates(args: argparse.Namespace) -> tuple[DateWindow, DateWindow]:
    """Dates for training and validation; those that were not given come from the archive."""
    covered = archive_span(args.root)
    check_fits(covered, args.val_window_days, "validation")
    train_start, train_end, val_start, val_end = (
        _edge(args, name, covered) for name in ("train_start", "train_end", "val_start", "val_end")
    )
    share = timedelta(days=max(covered.length.days // _VAL_SHARE, args.val_window_days))
    cut = train_end or val_start or covered.end - share
    return (
        DateWindow.of(train_start or covered.start, train_end or cut, "training"),
        DateWindow.of(val_start or cut, val_end or covered.end, "validation"),
    )


def _edge(args: argparse.Namespace, name: str, covered: DateWindow) -> datetime | None:
    """The date that was given for ``name``, if one was."""
    text = getattr(args, name)
    if text is None:
        return None
    date = parse_date(text)
    if not covered.start <= date <= covered.end:
        raise ConfigError(
            f"--{name.replace('_', '-')} {text} lies outside the archive, which covers {covered.id}"
        )
    return date


def _check(config: RunConfig) -> None:
    for name in ("epochs", "batch_size", "stride_days"):
        check_positive(getattr(config, name), f"--{name.replace('_', '-')}")
    for name in ("workers", "seed"):
        if getattr(config, name) < 0:
            raise ConfigError(f"--{name} is {getattr(config, name)}; at least 0")
    check_fits(config.train_dates, config.window_days, "training")
    check_fits(config.val_dates, config.val_window_days, "validation")
    check_disjoint(config.train_dates, config.val_dates)
    if config.resume and not config.last_checkpoint.is_file():
        raise ConfigError(f"nothing to resume: {config.last_checkpoint} does not exist")
