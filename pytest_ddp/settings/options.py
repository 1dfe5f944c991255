"""Checks the command line and the ini file and turns them into a frozen record.

A wrong value is always a :class:`pytest.UsageError` that names the place, the value and the fix.
The allowed values are in :mod:`pytest_ddp.settings.rules`.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_ddp.settings import rules
from pytest_ddp.settings.rules import option_error
from pytest_ddp.system import editors


class Output(enum.StrEnum):
    """The ranks whose captured output is in the report of a test."""

    FAILED = "failed"
    ALL = "all"
    RANK0 = "rank0"


class CheckCollectives(enum.StrEnum):
    """Whether ranks that ended must have issued the same collectives."""

    ON = "on"
    OFF = "off"


class Unsupported(enum.StrEnum):
    """How ddp tests end on a system that cannot run ranks: as errors, or skipped."""

    ERROR = "error"
    SKIP = "skip"


class StartMethod(enum.StrEnum):
    """How a rank's process is started."""

    FORK = "fork"
    SPAWN = "spawn"


class Import(enum.StrEnum):
    """The processes that import the user's own code: each rank, or their host once."""

    RANK = "rank"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line and the ini file, for the whole session."""

    backend: str
    """The backend for marks without one: ``auto``, or in torch's syntax."""
    world_size: int
    """The world size for marks without one."""
    timeout: float
    """Seconds for one test, for marks without one."""
    start_method: StartMethod
    isolate: bool
    """Whether every test gets fresh ranks, for marks without this argument."""
    seed: int
    """Session seed, from which the seeds of all tests and ranks derive."""
    output: Output
    import_: Import = Import.RANK
    """Whether each rank imports the user's own code, or their host once for all ranks."""
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
    """How many ranks may share a GPU, for marks without this argument."""
    unsupported: Unsupported = Unsupported.ERROR
    """How ddp tests end where ranks cannot run."""
    docs_url: str = ""
    """The address of the documentation, for failure texts; empty if there is none."""

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
        """The start method of the session: the option's value; spawn with an editor's debugger,
        whose threads forbid a fork."""
        return StartMethod.SPAWN if editors.is_attached() else self.start_method


EVERYDAY = "tests on several torch.distributed ranks"
"""The group of ``pytest --help`` with the options that most suites use, of extensions too."""
_RANKS = "devices and processes of ranks"
INI_ONLY = ""
"""What belongs to a suite and not to a call; ``pytest -o`` sets it for once."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One option, its ini option and the rule for both."""

    name: str
    metavar: str
    kind: Literal["string", "int", "float", "bool"]
    """Type of the ini value, so that TOML may contain numbers and booleans."""
    default: object
    check: Callable[[object], Any]
    rule: str
    """The allowed values, for a value that pytest cannot convert, so that the check is not run."""
    help: str
    group: str = EVERYDAY
    """Title of its group in ``pytest --help``; :data:`INI_ONLY` for no option there."""

    @property
    def flag(self) -> str:
        return f"--ddp-{self.name.strip('_').replace('_', '-')}"

    @property
    def ini(self) -> str:
        return f"ddp_{self.name.strip('_')}"

    def read(self, config: pytest.Config, given: object) -> Any:
        """Return the checked value.

        Args:
            config: has the ini file.
            given: the parsed command line, which wins.
        """
        text = getattr(given, self.ini, None)
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
            return text  # the check refuses it, with its own text

    def _from_ini(self, config: pytest.Config) -> object:
        try:
            return config.getini(self.ini)
        except (TypeError, ValueError, pytest.UsageError) as error:  # the last since pytest 9.2
            raise option_error(f"ini option {self.ini}: {error}; {self.rule}.") from None


_SETTINGS = (
    Setting(
        name="backend",
        metavar="NAME",
        kind="string",
        default="auto",
        check=rules.check_backend,
        rule=rules.BACKEND,
        help="process group backend in torch's syntax: gloo, nccl, cpu:gloo,cuda:nccl, or one of a "
        "plugin; auto is nccl if every rank gets its own GPU, else gloo",
    ),
    Setting(
        name="device",
        metavar="cpu|cuda|xpu|meta",
        kind="string",
        default="",
        check=rules.check_device_or_none,
        rule=rules.DEVICE,
        help="device of the ranks if neither device nor backend of the mark names one; with cuda, "
        "ranks that use gloo get GPUs too",
        group=_RANKS,
    ),
    Setting(
        name="ranks_per_gpu",
        metavar="N",
        kind="int",
        default=1,
        check=rules.check_sharing,
        rule=rules.SHARING,
        help="how many ranks may share a GPU, with gloo or nccl",
        group=_RANKS,
    ),
    Setting(
        name="world_size",
        metavar="N",
        kind="int",
        default=2,
        check=rules.check_size,
        rule=rules.SIZE,
        help="number of ranks for marks without world_size",
    ),
    Setting(
        name="timeout",
        metavar="SECONDS",
        kind="float",
        default=300.0,
        check=rules.check_seconds,
        rule=rules.SECONDS,
        help="time for one test; after it the ranks are stopped and their stacks are shown",
    ),
    Setting(
        name="start_method",
        metavar="fork|spawn",
        kind="string",
        default="fork" if sys.platform == "linux" else "spawn",
        check=rules.check_member(StartMethod),
        rule="",
        help="how ranks are started; spawn is slower and works with any import",
        group=_RANKS,
    ),
    Setting(
        name="import_",
        metavar="rank|host",
        kind="string",
        default="rank",
        check=rules.check_member(Import),
        rule="",
        help="where your own code is imported: in each rank, as under torchrun, or once before "
        "ranks are forked, which is faster but hides differences between ranks at import",
        group=_RANKS,
    ),
    Setting(
        name="isolate",
        metavar="",
        kind="bool",
        default=False,
        check=rules.check_bool,
        rule=rules.BOOL,
        help="give every test fresh ranks",
        group=_RANKS,
    ),
    Setting(
        name="seed",
        metavar="N",
        kind="int",
        default=0,
        check=rules.check_seed,
        rule=rules.SEED,
        help="session seed, from which the seeds of all tests and ranks derive",
    ),
    Setting(
        name="output",
        metavar="failed|all|rank0",
        kind="string",
        default="failed",
        check=rules.check_member(Output),
        rule="",
        help="show the captured output of the ranks that failed, of all, or of rank 0",
    ),
    Setting(
        name="check_collectives",
        metavar="on|off",
        kind="string",
        default="on",
        check=rules.check_member(CheckCollectives),
        rule="",
        help="fail a test if its ranks issued different collectives, even if its asserts pass",
        group=INI_ONLY,
    ),
    Setting(
        name="trace",
        metavar="DIR",
        kind="string",
        default="",
        check=rules.check_directory,
        rule="",
        help="write a trace of each ddp test to DIR, and a picture of each failed one",
    ),
    Setting(
        name="diagnosis",
        metavar="DIR",
        kind="string",
        default="",
        check=rules.check_directory,
        rule="",
        help="write a JSON file for each failed test into DIR: what happened, on which rank, where",
    ),
    Setting(
        name="docs_url",
        metavar="URL",
        kind="string",
        default="",
        check=rules.check_url_or_empty,
        rule="",
        help="base address of this plugin's documentation: failure texts link to it for each code",
        group=INI_ONLY,
    ),
    Setting(
        name="debug_rank",
        metavar="RANK",
        kind="string",
        default="",
        check=rules.check_rank,
        rule="",
        help="the only rank that stops at breakpoints; with --trace, the one to stop instead of 0",
        group=_RANKS,
    ),
    Setting(
        name="unsupported",
        metavar="error|skip",
        kind="string",
        default="error",
        check=rules.check_member(Unsupported),
        rule="",
        help="what ddp tests are where ranks cannot run, such as on macOS and Windows: errors or "
        "skips",
        group=_RANKS,
    ),
)


OPTIONS = pytest.StashKey[Options]()
"""The key of a config's options, once pytest has begun to configure it."""


def _check_fits(config: pytest.Config, world_size: int) -> None:
    if world_size > rules.MAX_LOCAL_WORLD_SIZE:
        layout = config.hook.pytest_ddp_make_layout(config=config)
        if layout is None or world_size > layout.max_world_size:
            raise option_error(f"--ddp-world-size={world_size}: {rules.LOCAL_SIZE}.")


def add_options(parser: pytest.Parser, settings: Iterable[Setting] = _SETTINGS) -> None:
    """Register ``--ddp-*`` options and their ini options: those of the core, or of an extension."""
    for setting in settings:
        has_none = setting.kind == "bool" or setting.default == ""
        default = "" if has_none else f" (default: {setting.default})"
        # None for an option that is not on the command line: then the ini file decides.
        action: dict[str, Any] = {"metavar": setting.metavar}
        if setting.kind == "bool":
            action = {"action": "store_const", "const": True}
        words = setting.help + default
        if setting.group != INI_ONLY:
            group = parser.getgroup(setting.group)
            group.addoption(setting.flag, dest=setting.ini, default=None, help=words, **action)
            words = f"same as {setting.flag}"
        parser.addini(setting.ini, words, type=setting.kind, default=setting.default)
