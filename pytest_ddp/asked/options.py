"""Command line, ini file and ``ddp`` marker, checked and turned into frozen records.

A wrong value is always a :class:`pytest.UsageError` that names the place, the value
and the way out; what is allowed stands in :mod:`pytest_ddp.asked.rules`.
"""

from __future__ import annotations

import difflib
import enum
import itertools
import sys
import unittest
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from pytest_ddp.asked import rules
from pytest_ddp.asked.rules import (
    BackendChoice,
    WorldSize,
    enumerated,
    mark_error,
    option_error,
    shown,
)
from pytest_ddp.system.own import inspect

if TYPE_CHECKING:
    from _pytest.nodes import Node  # pytest exports its subclasses only

MARKER_HELP = (
    "ddp(world_size=2, backend='auto', init=True, isolate=False, family='', timeout=300, seed=0, "
    "env={}): run the test on world_size ranks of one torch.distributed process group and report "
    "it as one test. world_size is a number, a list (parametrizes the test) or 'gpus' (one rank "
    "for each GPU); backend is 'auto', 'gloo' or 'nccl'; init=False leaves init_process_group to "
    "the test; isolate=True gives the test fresh ranks; ranks in whose modules tests of a family "
    "left something go to no others; timeout is in seconds; seed='same' seeds all ranks alike; "
    "env is a dict of environment variables. Arguments left out come from the marks of the class "
    "and the module, then from the --ddp-* options."
)


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

    backend: BackendChoice
    """For marks without one."""
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
    everywhere: int | None = None
    """World size of tests that have no mark; None to leave them to the pytest process."""

    @classmethod
    def from_config(cls, config: pytest.Config) -> Options:
        """Read all options; the command line wins over the ini file.

        Raises:
            pytest.UsageError: an option's value is not allowed.
        """
        return cls(**{setting.name: setting.read(config, config.option) for setting in _SETTINGS})


KEEPS_GROUP = pytest.StashKey[bool]()
"""For tests that were made ddp tests without a mark of their own; see :attr:`Mark.keeps_group`."""

WORLD_SIZE_PARAM = "_ddp_world_size"
"""Name of the parameter that a list of world sizes parametrizes the test with."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What the ``ddp`` marks on a test, its class and its module say together."""

    world_sizes: tuple[WorldSize, ...]
    """One entry, unless ``listed``."""
    listed: bool
    """``world_size`` was a list: the test is parametrized, with ids ws1, ws2 and so on."""
    backend: BackendChoice | None = None
    init: bool = True
    """Whether the process group is initialised before the test's fixtures run."""
    isolate: bool | None = None
    family: str = ""
    """Name of the tests that share what they leave in modules; empty for none."""
    timeout: float | None = None
    """Seconds."""
    seed: int | Literal["same"] | None = None
    env: tuple[tuple[str, str], ...] = ()
    """Environment variables for the ranks, as pairs of name and value."""
    keeps_group: bool = False
    """Whether a default process group that a test has left is there for the next, as under
    torchrun; not to be asked for in a mark."""


# --------------------------------------------------------------- the options


@dataclass(frozen=True, slots=True)
class _Setting:
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
    _Setting(
        *("backend", "auto|gloo|nccl", "string", "auto", rules.check_backend, rules.BACKEND),
        help="process group backend: auto is nccl if every rank gets its own GPU, else gloo",
    ),
    _Setting(
        *("world_size", "N", "int", 2, rules.check_size, rules.SIZE),
        help="number of ranks for marks that name none",
    ),
    _Setting(
        *("timeout", "SECONDS", "float", 300.0, rules.check_seconds, rules.SECONDS),
        help="time for one test; then its ranks are stopped and their stacks are shown",
    ),
    _Setting(
        *("start_method", "fork|spawn", "string"),
        *("fork" if sys.platform == "linux" else "spawn", rules.check_member(StartMethod), ""),
        help="how ranks are started; spawn is slower and safe with any import",
    ),
    _Setting(
        *("import_", "rank|host", "string", "rank", rules.check_member(Import), ""),
        help="where your own code is imported: in each rank, as under torchrun, or once before "
        "ranks are forked, which is faster and hides what differs between ranks at import",
    ),
    _Setting(
        *("isolate", "", "bool", False, rules.check_bool, rules.BOOL),
        help="give every test fresh ranks",
    ),
    _Setting(
        *("seed", "N", "int", 0, rules.check_seed, rules.SEED),
        help="session seed, from which the seeds of all tests and ranks derive",
    ),
    _Setting(
        *("output", "failed|all|rank0", "string", "failed", rules.check_member(Output), ""),
        help="show the captured output of the ranks that failed, of all, or of rank 0",
    ),
    _Setting(
        *("check_collectives", "on|off", "string", "on"),
        *(rules.check_member(CheckCollectives), ""),
        help="fail a test whose ranks issued different collectives although its asserts pass",
    ),
    _Setting(
        *("trace", "DIR", "string", "", rules.check_directory, ""),
        help="write a trace of each ddp test to DIR, and a picture of each failed one",
    ),
    _Setting(
        *("diagnosis", "DIR", "string", "", rules.check_directory, ""),
        help="write a JSON file for each failed test into DIR: what happened, on which rank, where",
    ),
    _Setting(
        *("debug_rank", "RANK", "string", "", rules.check_rank, ""),
        help="the only rank that stops at breakpoints, and with --trace instead of rank 0",
    ),
    _Setting(
        *("everywhere", "N", "string", "", rules.check_size_or_none, rules.SIZE),
        help="run every test that has no ddp mark on N ranks, as torchrun -m pytest would",
    ),
)


def add_options(parser: pytest.Parser) -> None:
    """Register the ``--ddp-*`` options and their ini twins."""
    group = parser.getgroup("ddp", "tests on several torch.distributed ranks")
    for setting in _SETTINGS:
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


def early_everywhere(config: pytest.Config) -> int | None:
    """``everywhere``, while the command line is still parsed.

    Raises:
        pytest.UsageError: its value is not allowed.
    """
    setting = next(setting for setting in _SETTINGS if setting.name == "everywhere")
    size: int | None = setting.read(config, config.known_args_namespace)
    return size


# ----------------------------------------------------------------- the marker

_ARGUMENTS: dict[str, Callable[[object], object]] = {
    "world_size": rules.check_sizes,
    "backend": rules.check_backend,
    "init": rules.check_bool,
    "isolate": rules.check_bool,
    "family": rules.check_name,
    "timeout": rules.check_seconds,
    "seed": rules.check_seed_or_same,
    "env": rules.check_env,
}


def read_mark(node: pytest.Item, options: Options) -> Mark | None:
    """Return what the ``ddp`` marks of a test say, None if it has none.

    For each argument the nearest mark that names it wins: the parameter set, the
    function, the class, its base classes, the module. All marks are checked, also
    where a nearer one wins.

    Raises:
        pytest.UsageError: a mark is wrong.
    """
    arguments: dict[str, Any] = {}
    marks = list(_nearest_first(node))
    for owner, mark in marks:
        arguments = _checked(node, owner, mark) | arguments
    if not marks:
        return None
    sizes, listed = arguments.pop("world_size", ((options.world_size,), False))
    if listed and _in_testcase(node):
        raise mark_error(
            node,
            f"@pytest.mark.ddp(world_size={shown(list(sizes))}): pytest cannot parametrize a "
            f"unittest.TestCase. Write one world size, or make it a plain test class.",
        )
    keeps_group = node.stash.get(KEEPS_GROUP, False)
    return Mark(world_sizes=sizes, listed=listed, keeps_group=keeps_group, **arguments)


def check_function(item: pytest.Item) -> None:
    """Refuse an item with a ``ddp`` mark that ranks cannot run; others pass unseen.

    Marks on fixtures, and ``yield`` in a plain test function, pytest refuses itself.

    Raises:
        pytest.UsageError: no Python test function, or an async generator.
    """
    if item.get_closest_marker("ddp") is None:
        return
    if not isinstance(item, pytest.Function):
        raise mark_error(
            item,
            f"@pytest.mark.ddp works on Python test functions; this is a {type(item).__name__}. "
            f"Take the mark off it.",
        )
    if inspect.isasyncgenfunction(item.function):
        raise mark_error(
            item,
            "@pytest.mark.ddp: the function has a yield, so calling it runs no line of the test. "
            "Move what stands before and after the yield to a fixture.",
        )


def _checked(node: Node, owner: Node, mark: pytest.Mark) -> dict[str, object]:
    if mark.args:
        value = shown(mark.args[0])
        name = "backend" if value in ("'auto'", "'gloo'", "'nccl'") else "world_size"
        raise mark_error(
            node,
            f"@pytest.mark.ddp({value}): arguments go by name. Write {name}={value}.",
            owner,
        )
    return {name: _argument(node, owner, name, value) for name, value in mark.kwargs.items()}


def _argument(node: Node, owner: Node, name: str, value: object) -> object:
    given = f"@pytest.mark.ddp({name}={shown(value)})"
    if name not in _ARGUMENTS:
        close = difflib.get_close_matches(name, _ARGUMENTS, n=1, cutoff=0.5)
        hint = f" Did you mean {close[0]}?" if close else ""
        known = enumerated(_ARGUMENTS)
        raise mark_error(
            node, f"{given}: no such argument.{hint} The arguments are {known}.", owner
        )
    try:
        return _ARGUMENTS[name](value)
    except ValueError as error:
        raise mark_error(node, f"{given}: {error}.", owner) from None


def _in_testcase(node: pytest.Item) -> bool:
    cls = getattr(node, "cls", None)
    return cls is not None and issubclass(cls, unittest.TestCase)


def _nearest_first(node: pytest.Item) -> Iterator[tuple[Node, pytest.Mark]]:
    pairs = node.iter_markers_with_node("ddp")
    for owner, marks in itertools.groupby(pairs, key=lambda pair: pair[0]):
        yield from sorted(marks, key=lambda pair: _distance(owner, pair[1]))


def _distance(owner: Node, mark: pytest.Mark) -> int:
    """Order the marks of one node: pytest lists base classes and functions first,
    although a subclass and a ``pytest.param`` stand nearer to the test."""
    callspec = getattr(owner, "callspec", None)
    if callspec is not None:
        return 0 if any(other is mark for other in callspec.marks) else 1
    if isinstance(owner, pytest.Class):
        for depth, cls in enumerate(owner.obj.__mro__):
            own = vars(cls).get("pytestmark", [])
            marks = own if isinstance(own, list) else [own]
            if any(getattr(other, "mark", other) is mark for other in marks):
                return depth
    return 0
