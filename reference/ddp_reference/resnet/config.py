"""The command line and the three machines that it knows."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal, NoReturn

import torch

from ddp_reference.resnet.agreement import ConfigError
from ddp_reference.resnet.model import Stem, smallest_resolution
from ddp_reference.resnet.resolution import ResolutionSchedule

Precision = Literal["32-true", "16-mixed", "bf16-mixed"]


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """What a configuration fixes and an option may change. Raises :class:`ConfigError`."""

    devices: int
    """Ranks on this machine."""
    accelerator: str
    """``cpu``, ``gpu`` or ``auto``, in Lightning's sense."""
    precision: Precision
    blocks: tuple[int, ...]
    """Residual blocks per stage."""
    width: int
    """Channels of the first stage."""
    stem: Stem
    epochs: int
    batch_size: int
    """Number of images of a rank in a step."""
    workers: int
    """Loader processes per rank."""
    learning_rate: float
    """Peak, for the global batch."""
    warmup_epochs: int
    schedule: ResolutionSchedule
    val_resolution: int
    """Pixels a side in validation, the same in all epochs so that they can be compared."""

    def __post_init__(self) -> None:
        for name in ("devices", "width", "epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; at least 1 is needed")
        if self.workers < 0 or not self.learning_rate > 0:
            raise ConfigError(
                f"workers is {self.workers} and learning_rate {self.learning_rate}; "
                "at least 0 and more than 0 are needed"
            )
        self._check_resolutions()

    def _check_resolutions(self) -> None:
        least = smallest_resolution(self.blocks, self.stem)
        found = min(self.schedule.smallest, self.val_resolution)
        if found < least:
            raise ConfigError(
                f"resolution {found} is too small for {len(self.blocks)} stages after the "
                f"{self.stem} stem; at least {least} pixels are needed (--schedule, "
                "--val-resolution)"
            )


@dataclass(frozen=True, slots=True)
class Settings:
    """One run, as the command line describes it."""

    name: str
    """The name of the configuration; names the folder of its runs."""
    data: Path
    log_dir: Path
    index: Path | None
    """The file of the list of images; None for one in the data folder."""
    resume: Path | None
    """Checkpoint to go on from."""
    check: bool
    """Decode every image that was not checked before."""
    progress: bool
    seed: int
    train: TrainConfig


_LOCAL = TrainConfig(
    devices=1,
    accelerator="auto",
    precision="32-true",
    blocks=(1, 1, 1),
    width=12,
    stem="small",
    epochs=6,
    batch_size=16,
    workers=2,
    learning_rate=0.1,
    warmup_epochs=1,
    schedule=ResolutionSchedule(((0, 16), (2, 24), (4, 32))),
    val_resolution=32,
)
_G5 = TrainConfig(
    devices=4,
    accelerator="gpu",
    precision="bf16-mixed",
    blocks=(3, 4, 6, 3),
    width=64,
    stem="imagenet",
    epochs=18,
    batch_size=256,
    workers=8,
    learning_rate=1.0,
    warmup_epochs=2,
    schedule=ResolutionSchedule(((0, 128), (6, 176), (14, 224))),
    val_resolution=224,
)
# V100s have no bfloat16.
_P3 = replace(_G5, devices=8, precision="16-mixed", batch_size=128)

CONFIGS: Mapping[str, TrainConfig] = {"local": _LOCAL, "g5": _G5, "p3": _P3}
"""One device of any kind; the 4 A10G of a g5.12xlarge; the 8 V100 of a p3.16xlarge."""


class _Parser(argparse.ArgumentParser):
    """Errors are raised: ``argparse`` would print them, and the usage, on every rank."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see {self.prog} --help)")


def parse(arguments: Sequence[str] | None = None) -> Settings:
    """Read the command line. Raises :class:`ConfigError`, on all ranks alike."""
    options = vars(_parser().parse_args(arguments))
    name = options["name"]
    named = {field.name: options.pop(field.name, None) for field in fields(TrainConfig)}
    changed = {key: value for key, value in named.items() if value is not None}
    changed.setdefault("devices", _launched_devices(CONFIGS[name].devices))
    settings = Settings(train=replace(CONFIGS[name], **changed), **options)
    _require_devices(settings)
    _require_checkpoint(settings)
    return settings


def _parser() -> _Parser:
    parser = _Parser(prog="python -m ddp_reference.resnet", description=__doc__)
    parser.add_argument("--config", dest="name", choices=sorted(CONFIGS), default="local")
    parser.add_argument("--data", type=Path, default=Path("runs/resnet-data"))
    parser.add_argument("--log-dir", type=Path, default=Path("runs/resnet"))
    parser.add_argument("--index", type=Path, help="file for the list of images")
    parser.add_argument("--resume", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-check", dest="check", action="store_false")
    parser.add_argument("--no-progress", dest="progress", action="store_false")
    changes = parser.add_argument_group("changes to the configuration")
    changes.add_argument("--devices", type=int)
    changes.add_argument("--accelerator", choices=("auto", "cpu", "gpu"))
    changes.add_argument("--precision", choices=("32-true", "16-mixed", "bf16-mixed"))
    changes.add_argument("--epochs", type=int)
    changes.add_argument("--batch-size", type=int, help="per device")
    changes.add_argument("--workers", type=int, help="loader processes per device")
    changes.add_argument("--learning-rate", type=float)
    changes.add_argument("--width", type=int, help="channels of the first stage")
    changes.add_argument("--schedule", type=_schedule, help="EPOCH:PIXELS,... as in 0:128,6:224")
    changes.add_argument("--val-resolution", type=int)
    return parser


def _schedule(text: str) -> ResolutionSchedule:
    """``argparse`` shows the text of its own error class alone."""
    try:
        return ResolutionSchedule.parse(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _launched_devices(default: int) -> int:
    """The number of devices that torchrun has started on this machine, if it was torchrun."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", default))


def _require_devices(settings: Settings) -> None:
    devices = settings.train.devices
    launched = _launched_devices(devices)
    if launched != devices:
        raise ConfigError(f"torchrun has started {launched} ranks here, but --devices is {devices}")
    if _uses_gpus(settings.train) and torch.cuda.device_count() < devices:
        raise ConfigError(
            f"{devices} devices need as many GPUs, and this machine has "
            f"{torch.cuda.device_count()}; use --devices, or --accelerator cpu --precision 32-true"
        )


def _uses_gpus(config: TrainConfig) -> bool:
    automatic = config.accelerator == "auto" and torch.cuda.is_available()
    return automatic or config.accelerator == "gpu"


def _require_checkpoint(settings: Settings) -> None:
    if settings.resume is not None and not settings.resume.is_file():
        raise ConfigError(f"there is no checkpoint {settings.resume}; see --resume")
