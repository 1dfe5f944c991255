"""What a training run is told: one frozen record, from defaults, a TOML file and options."""

import argparse
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, get_args, get_type_hints

from .distributed import Backend, ConfigError

StageName = Literal["operator", "diffusion", "consistency", "steady-prior"]
Strategy = Literal["auto", "none", "ddp", "fsdp1", "fsdp2", "tp", "fsdp2_tp"]
CompileOrder = Literal["none", "before", "after"]
CompileBackend = Literal["inductor", "aot_eager", "eager"]
Precision = Literal["fp32", "bf16"]
Uneven = Literal["pad", "join"]
Memory = Literal["shared", "file"]

_POSITIVE = (
    *("epochs", "batch_size", "accumulate", "learning_rate", "clip_norm"),
    *("width", "depth", "tensor_parallel", "samples", "timeout"),
)


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Every choice of a run. ``batch_size`` is global: samples per optimizer step, all ranks."""

    stage: Annotated[StageName, "which of the four models to train"] = "operator"
    strategy: Annotated[Strategy, "auto: ddp in a process group, else none"] = "auto"
    compile: Annotated[CompileOrder, "compile before or after the wrap"] = "none"
    compile_backend: Annotated[CompileBackend, "torch.compile's backend"] = "inductor"
    precision: Annotated[Precision, "bf16: autocast, or FSDP's mixed precision"] = "fp32"
    epochs: Annotated[int, "passes over the training data"] = 3
    batch_size: Annotated[int, "samples per optimizer step over all ranks"] = 64
    accumulate: Annotated[int, "micro-batches per optimizer step"] = 1
    uneven: Annotated[Uneven, "short ranks: padding of weight zero, or DDP's Join"] = "pad"
    learning_rate: Annotated[float, "AdamW"] = 2e-3
    clip_norm: Annotated[float, "upper bound of the global gradient norm"] = 10.0
    width: Annotated[int, "hidden units"] = 64
    depth: Annotated[int, "residual blocks"] = 2
    min_num_params: Annotated[int, "FSDP: parameters from which a module is a shard unit"] = 4000
    tensor_parallel: Annotated[int, "fsdp2_tp: ranks that split each layer"] = 2
    samples: Annotated[int, "samples to generate when there is no data file"] = 2000
    seed: Annotated[int, "data, initial weights, order and noise; equal on all ranks"] = 0
    workers: Annotated[int, "DataLoader workers per rank"] = 0
    data: Annotated[Path | None, "latent cache; built if missing"] = None
    memory: Annotated[Memory, "cache in shared memory, or mapped from its file"] = "shared"
    checkpoint: Annotated[Path | None, "written at the end of each epoch"] = None
    save_every: Annotated[int, "write the checkpoint also every so many steps"] = 0
    resume: Annotated[Path | None, "checkpoint to go on from"] = None
    max_steps: Annotated[int, "stop, with a checkpoint, after so many steps in all"] = 0
    backend: Annotated[Backend, "process group backend"] = "auto"
    timeout: Annotated[float, "seconds until a collective gives up"] = 600.0

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, not {getattr(self, name)}")
        for name in ("min_num_params", "workers", "save_every", "max_steps"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be at least 0, not {getattr(self, name)}")
        if self.uneven == "join" and self.strategy not in ("auto", "none", "ddp"):
            raise ConfigError(f"Join is DDP's; with {self.strategy} use uneven='pad'")
        if self.uneven == "join" and (self.save_every or self.max_steps):
            raise ConfigError(
                "save_every and max_steps gather in mid-epoch, when joined ranks have left; "
                "use uneven='pad'"
            )
        if (self.save_every or self.max_steps) and self.checkpoint is None:
            raise ConfigError("save_every and max_steps write a checkpoint: say where")

    @property
    def data_path(self) -> Path:
        default = Path("runs") / f"burgers-{self.samples}-{self.seed}.pt"
        return default if self.data is None else self.data


def local_batch_size(config: TrainConfig, data_ranks: int) -> int:
    """Samples per rank and micro-batch; raises ConfigError where the parts would differ.

    ``data_ranks``: those with samples of their own, where others share theirs.
    """
    parts = data_ranks * config.accumulate
    if config.batch_size % parts:
        raise ConfigError(
            f"batch_size {config.batch_size} cannot be divided by {data_ranks} ranks x "
            f"{config.accumulate} micro-batches; take a multiple of {parts}"
        )
    return config.batch_size // parts


def parse_config(argv: Sequence[str] | None) -> TrainConfig:
    """Options over the file of ``--config`` over defaults; raises ConfigError for a wrong one."""
    given = vars(_parser().parse_args(argv))
    try:
        return TrainConfig(**{**_read(given.pop("config", None)), **given})
    except (tomllib.TOMLDecodeError, OSError) as error:
        raise ConfigError(f"--config: {error}") from error


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing, which under a launcher every rank would do."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m ddp_reference.train",
        description="Train one stage, alone or under torchrun.",
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--config", type=Path, help="TOML file with these options as keys")
    hints = get_type_hints(TrainConfig, include_extras=True)
    for option in fields(TrainConfig):
        hint, text = get_args(hints[option.name])
        parser.add_argument(
            "--" + option.name.replace("_", "-"),
            type=_reader(hint),
            choices=get_args(hint) if isinstance(option.default, str) else None,
            help=f"{text} (default: {option.default})",
        )
    return parser


def _reader(hint: Any) -> type[Any]:
    if hint in (int, float):
        return hint  # type: ignore[no-any-return]
    return Path if hint == Path | None else str


def _read(path: Path | None) -> Mapping[str, Any]:
    if path is None:
        return {}
    options = tomllib.loads(path.read_text())
    hints = get_type_hints(TrainConfig)
    unknown = sorted(options.keys() - hints.keys())
    if unknown:
        raise ConfigError(f"{path}: no option {unknown[0]!r}; there are {', '.join(sorted(hints))}")
    for name, value in options.items():
        options[name] = _checked(path, name, value, hints[name])
    return options


def _checked(path: Path, name: str, value: Any, hint: Any) -> Any:
    reader = _reader(hint)
    if reader is Path and isinstance(value, str):
        return Path(value)
    # A number in TOML has a type of its own: 3 is a fine float, true no integer.
    fits = type(value) is reader or (reader is float and type(value) is int)
    if not fits or (reader is str and value not in get_args(hint)):
        wanted = get_args(hint) if reader is str else reader.__name__
        raise ConfigError(f"{path}: {name} is {value!r}, not one of {wanted}")
    return value
