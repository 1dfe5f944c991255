"""Command line and ini file, checked and turned into a frozen record.

A wrong value is always a :class:`pytest.UsageError` that names the place, the value
and the way out; what is allowed stands in :mod:`pytest_ddp.asked.rules`.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_ddp.asked import rules
from pytest_ddp.asked.rules import option_error
from pytest_ddp.system import editors


class Output(enum.StrEnum):
    """Whose captured output the report of a test shows."""

    FAILED = "failed"
    ALL = "all"
    RANK0 = "rank0"


class CheckCollectives(enum.StrEnum):
    """Whether ranks that ended must have issued the same collectives."""

    ON = "on"
    OFF = "off"


class StartMethod(enum.StrEnum):
    """How a rank's process comes to be."""

    FORK = "fork"
    SPAWN = "spawn"


class Import(enum.StrEnum):
    """Where the user's own code is imported."""

    RANK = "rank"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line and the ini file say, for the whole session."""

    backend: str
    """For marks without one: ``auto``, or as torch takes it."""
    world_size: int
    """For marks without one."""
    timeout: float
    """Seconds for one test, for marks without one."""
    start_method: StartMethod
    isolate: bool
    """Whether every test gets fresh ranks, for marks that do not say."""
    seed: int
    """Session seed, from which the seeds of all tests and ranks derive."""
    output: Output
    import_: Import = Import.RANK
    """Whether each rank imports the user's own code, or their host once for all."""
    check_collectives: CheckCollectives = CheckCollectives.ON
    trace: Path | None = None
    """Directory for a trace of each ddp test; None for none."""
    diagnosis: Path | None = None
    """Directory for a JSON file of each failed test; None for no files."""
    debug_rank: int | None = None
    """The only rank that stops at breakpoints; None for all."""
    device: str | None = None
    """Kind of device for marks that name neither one nor a backend of one; None to see."""
    ranks_per_gpu: int = 1
    """How many ranks may share a GPU, for marks that do not say."""

    @classmethod
    def from_config(cls, config: pytest.Config) -> Options:
        """Read all options; the command line wins over the ini file.

        Raises:
            pytest.UsageError: an option's value is not allowed.
        """
        read = {setting.name: setting.read(config, config.option) for setting in _SETTINGS}
        if config.option.ddp_world_size is not None:
            # Said for this session. A mark or an ini file may be meant for a cluster.
            _check_fits(config, read["world_size"])
        return cls(**read)

    def usable_start_method(self) -> StartMethod:
        """As asked for, unless an editor's debugger runs threads in what would be forked."""
        return StartMethod.SPAWN if editors.is_attached() else self.start_method


@dataclass(frozen=True, slots=True)
class Setting:
    """One option, its ini twin and the rule for both."""

    name: str
    metavar: str
    kind: Literal["string", "int", "float", "bool"]
    """Type of the ini value, so that TOML may hold numbers and booleans as such."""
    default: object
    check: Callable[[object], Any]
    rule: str
    """What the check allows, for a value so wrong that pytest cannot even convert it."""
    help: str

    @property
    def flag(self) -> str:
        return f"--ddp-{self.name.strip('_').replace('_', '-')}"

    @property
    def ini(self) -> str:
        return f"ddp_{self.name.strip('_')}"

    def read(self, config: pytest.Config, given: object) -> Any:
        """Return the checked value; the command line, which has ``given`` it, wins."""
        text = getattr(given, self.ini)
        value = self._from_ini(config) if text is None else self._converted(text)
        try:
            return self.check(value)
        except ValueError as error:
            place = f"ini option {self.ini}={value}" if text is None else f"{self.flag}={text}"
            raise option_error(f"{place}: {error}.") from None

    def _converted(self, text: Any) -> object:
        try:
            return {"int": int, "float": float}.get(self.kind, lambda same: same)(text)
        except ValueError:
            return text  # the check refuses it, in its own words

    def _from_ini(self, config: pytest.Config) -> object:
        try:
            return config.getini(self.ini)
        except (TypeError, ValueError, pytest.UsageError) as error:  # the last since pytest 9.2
            raise option_error(f"ini option {self.ini}: {error}; {self.rule}.") from None


_SETTINGS = (
    Setting(
        *("backend", "NAME", "string", "auto", rules.check_backend, rules.BACKEND),
        help="process group backend, as torch takes it: gloo, nccl, cpu:gloo,cuda:nccl, that of a "
        "plugin; auto is nccl if every rank gets its own GPU, else gloo",
    ),
    Setting(
        *("device", "cpu|cuda|xpu|meta", "string", "", rules.check_device_or_none, rules.DEVICE),
        help="what ranks work on where a mark says neither device nor a backend of one; cuda "
        "gives gloo's ranks GPUs too",
    ),
    Setting(
        *("ranks_per_gpu", "N", "int", 1, rules.check_sharing, rules.SHARING),
        help="how many ranks may share a GPU, which nccl refuses and gloo does not",
    ),
    Setting(
        *("world_size", "N", "int", 2, rules.check_size, rules.SIZE),
        help="number of ranks for marks that name none",
    ),
    Setting(
        *("timeout", "SECONDS", "float", 300.0, rules.check_seconds, rules.SECONDS),
        help="time for one test; then its ranks are stopped and their stacks are shown",
    ),
    Setting(
        *("start_method", "fork|spawn", "string"),
        *("fork" if sys.platform == "linux" else "spawn", rules.check_member(StartMethod), ""),
        help="how ranks are started; spawn is slower and safe with any import",
    ),
    Setting(
        *("import_", "rank|host", "string", "rank", rules.check_member(Import), ""),
        help="where your own code is imported: in each rank, as under torchrun, or once before "
        "ranks are forked, which is faster and hides what differs between ranks at import",
    ),
    Setting(
        *("isolate", "", "bool", False, rules.check_bool, rules.BOOL),
        help="give every test fresh ranks",
    ),
    Setting(
        *("seed", "N", "int", 0, rules.check_seed, rules.SEED),
        help="session seed, from which the seeds of all tests and ranks derive",
    ),
    Setting(
        *("output", "failed|all|rank0", "string", "failed", rules.check_member(Output), ""),
        help="show the captured output of the ranks that failed, of all, or of rank 0",
    ),
    Setting(
        *("check_collectives", "on|off", "string", "on"),
        *(rules.check_member(CheckCollectives), ""),
        help="fail a test whose ranks issued different collectives although its asserts pass",
    ),
    Setting(
        *("trace", "DIR", "string", "", rules.check_directory, ""),
        help="write a trace of each ddp test to DIR, and a picture of each failed one",
    ),
    Setting(
        *("diagnosis", "DIR", "string", "", rules.check_directory, ""),
        help="write a JSON file for each failed test into DIR: what happened, on which rank, where",
    ),
    Setting(
        *("debug_rank", "RANK", "string", "", rules.check_rank, ""),
        help="the only rank that stops at breakpoints, and with --trace instead of rank 0",
    ),
)


OPTIONS = pytest.StashKey[Options]()
"""Those of a config, once pytest has begun to configure it."""


def _check_fits(config: pytest.Config, world_size: int) -> None:
    if world_size > rules.MAX_LOCAL_WORLD_SIZE:
        layout = config.hook.pytest_ddp_make_layout(config=config)
        if layout is None or world_size > layout.max_world_size:
            raise option_error(f"--ddp-world-size={world_size}: {rules.LOCAL_SIZE}.")


def add_options(parser: pytest.Parser, settings: Iterable[Setting] = _SETTINGS) -> None:
    """Register ``--ddp-*`` options and their ini twins: those of the core, or of an extension."""
    group = parser.getgroup("ddp", "tests on several torch.distributed ranks")
    for setting in settings:
        has_none = setting.kind == "bool" or setting.default == ""
        default = "" if has_none else f" (default: {setting.default})"
        # None tells an option that was not given, so that the ini file can speak.
        action: dict[str, Any] = {"metavar": setting.metavar}
        if setting.kind == "bool":
            action = {"action": "store_const", "const": True}
        group.addoption(
            setting.flag, dest=setting.ini, default=None, help=setting.help + default, **action
        )
        parser.addini(
            setting.ini, f"same as {setting.flag}", type=setting.kind, default=setting.default
        )
