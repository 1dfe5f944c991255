"""Checks the ``ddp`` marks of a test and turns them into one frozen record.

A wrong mark is a :class:`pytest.UsageError` that names the place, the value and the fix.
"""

from __future__ import annotations

import difflib
import itertools
import unittest
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pytest

from pytest_ddp.settings import rules
from pytest_ddp.settings.options import Options
from pytest_ddp.settings.rules import WorldSize, enumerated, mark_error, shown
from pytest_ddp.system.stdlib import inspect

if TYPE_CHECKING:
    from _pytest.nodes import Node  # pytest exports its subclasses only

MARKER_HELP = (
    "ddp(world_size=2, backend='auto', timeout=300, ...): run the test on world_size ranks of one "
    "process group. world_size is a number, a list of them or 'gpus'; arguments left "
    "out come from the marks of class and module, then from --ddp-* options."
)
_PAGE = "All arguments: docs/plugin.md#the-mark"

_EXTRA = pytest.StashKey[dict[str, "MarkArgument"]]()
"""Arguments that plugins have added, by name."""

_MADE = pytest.StashKey["DdpTest"]()
"""The key of what plugins made a ddp test with."""

WORLD_SIZE_PARAM = "_ddp_world_size"
"""Name of the parameter for a list of world sizes."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The ``ddp`` marks of a test, its class and its module together."""

    world_sizes: tuple[WorldSize, ...]
    """One entry, unless ``listed``."""
    listed: bool
    """Whether ``world_size`` was a list: the test is parametrized, with ids ws1, ws2 and so on."""
    backend: str | None = None
    device: str | None = None
    """Type of the ranks' device."""
    ranks_per_gpu: int | None = None
    init: bool = True
    """Whether the process group is initialised before the test's fixtures run."""
    isolate: bool | None = None
    nodes: int | None = None
    """Number of machines that the test wants; None to see."""
    module_state: str = ""
    """Tests with the same name share what they change in modules; empty for none."""
    timeout: float | None = None
    """The timeout in seconds."""
    seed: int | Literal["same"] | None = None
    env: tuple[tuple[str, str], ...] = ()
    """Environment variables for the ranks, as pairs of name and value."""
    keeps_group: bool = False
    """Whether a default process group that the test leaves stays for the next test, as under
    torchrun. A mark has no argument for it."""
    own_tmp_path: bool = False
    """Whether each rank has a ``tmp_path`` of its own, as under torchrun. A mark has no argument
    for it."""
    extra: Mapping[str, object] = field(default_factory=dict, hash=False)
    """The given arguments that plugins have added."""


@dataclass(frozen=True, slots=True)
class DdpTest:
    """How a test without a mark is a ddp test; it makes its process group itself."""

    world_size: int | list[int]
    """A list for a test that :data:`WORLD_SIZE_PARAM` parametrizes already."""
    timeout: float | None = None
    """The timeout in seconds; None for that of the options."""
    nodes: int | None = None
    """Number of machines that the test wants. Ranks of a harness that starts processes meet by a
    file of one machine, or at localhost: 1 for these."""
    keeps_group: bool = False
    """Whether the next test finds the default process group that this one leaves."""
    own_tmp_path: bool = False
    """Whether each rank has a ``tmp_path`` of its own."""


@dataclass(frozen=True, slots=True)
class MarkArgument:
    """An argument of the mark that a plugin adds."""

    check: Callable[[object], object]
    """Returns the value to keep, or raises a ValueError whose text is what is allowed."""
    help: str
    """A clause for ``pytest --markers``, such as ``limit is in seconds``."""


_ARGUMENTS: dict[str, Callable[[object], object]] = {
    "world_size": rules.check_sizes,
    "backend": rules.check_backend,
    "device": rules.check_device,
    "ranks_per_gpu": rules.check_sharing,
    "init": rules.check_bool,
    "isolate": rules.check_bool,
    "nodes": rules.check_nodes,
    "module_state": rules.check_name,
    "timeout": rules.check_seconds,
    "seed": rules.check_seed_or_same,
    "env": rules.check_env,
}


_SYNONYMS = {
    # Names of launchers; the spelling of `nprocs` is closer to `nodes`.
    **dict.fromkeys(("nprocs", "nproc", "num_processes", "ranks"), "world_size"),
    # Its earlier name.
    "family": "module_state",
}
"""Arguments of the mark, by other names that people use for them."""


def add_marker(config: pytest.Config) -> None:
    """Make the ``ddp`` mark known to pytest, with the arguments that plugins add."""
    extra: dict[str, MarkArgument] = {}
    for added in config.hook.pytest_ddp_mark_arguments():
        extra |= added
    config.stash[_EXTRA] = extra
    added = "; ".join(argument.help for argument in extra.values())
    added_help = [f"By plugins: {added}."] if added else []
    config.addinivalue_line("markers", " ".join([MARKER_HELP, *added_help, _PAGE]))


def read_mark(node: pytest.Item, options: Options) -> Mark | None:
    """Return the ``ddp`` marks of a test as one record; None if it has none.

    For each argument the nearest mark with it wins: the parameter set, the function, the class, its
    base classes, the module. All marks are checked, also those that do not win.

    Raises:
        pytest.UsageError: a mark is wrong.
    """
    arguments: dict[str, Any] = {}
    marks = list(nearest_first(node))
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
    names = node.config.stash.get(_EXTRA, {}).keys() & arguments.keys()
    arguments["extra"] = {name: arguments.pop(name) for name in names}
    if (made := node.stash.get(_MADE, None)) is not None:
        arguments |= {"keeps_group": made.keeps_group, "own_tmp_path": made.own_tmp_path}
    return Mark(world_sizes=sizes, listed=listed, **arguments)


def make_test(item: pytest.Item) -> None:
    """Make a ddp test of one without a mark, where a plugin asks for it."""
    if item.get_closest_marker("ddp") is not None:
        return
    made: DdpTest | None = item.config.hook.pytest_ddp_make_test(item=item)
    if made is None:
        return
    arguments = {"timeout": made.timeout, "nodes": made.nodes}
    given = {name: value for name, value in arguments.items() if value is not None}
    item.add_marker(pytest.mark.ddp(world_size=made.world_size, init=False, **given))
    item.stash[_MADE] = made


def check_function(item: pytest.Item) -> None:
    """Refuse an item with a ``ddp`` mark that ranks cannot run; do nothing for other items.

    pytest itself refuses marks on fixtures, and ``yield`` in a plain test function.

    Raises:
        pytest.UsageError: it is no Python test function, or an async generator.
    """
    if item.get_closest_marker("ddp") is None:
        return
    if not isinstance(item, pytest.Function):
        raise mark_error(
            item,
            f"@pytest.mark.ddp works on Python test functions; this is a {type(item).__name__}. "
            f"Remove the mark.",
        )
    if inspect.isasyncgenfunction(item.function):
        raise mark_error(
            item,
            "@pytest.mark.ddp: the function has a yield, so calling it runs no line of the test. "
            "Move the code before and after the yield to a fixture.",
        )


def _checked(node: Node, owner: Node, mark: pytest.Mark) -> dict[str, object]:
    if mark.args:
        value = shown(mark.args[0])
        is_size = not isinstance(mark.args[0], str) or mark.args[0] == "gpus"
        name = "world_size" if is_size else "backend"
        raise mark_error(
            node,
            f"@pytest.mark.ddp({value}): arguments go by name. Write {name}={value}.",
            owner,
        )
    return {name: _argument(node, owner, name, value) for name, value in mark.kwargs.items()}


def _argument(node: Node, owner: Node, name: str, value: object) -> object:
    given = f"@pytest.mark.ddp({name}={shown(value)})"
    extra = node.config.stash.get(_EXTRA, {})
    checks = _ARGUMENTS | {name: argument.check for name, argument in extra.items()}
    if name not in checks:
        close = difflib.get_close_matches(name, checks, n=1, cutoff=0.5)
        meant = _SYNONYMS.get(name) or next(iter(close), "")
        hint = f" Did you mean {meant}?" if meant else ""
        names = enumerated(checks)
        raise mark_error(
            node, f"{given}: no such argument.{hint} The arguments are {names}.", owner
        )
    try:
        return checks[name](value)
    except ValueError as error:
        raise mark_error(node, f"{given}: {error}.", owner) from None


def _in_testcase(node: pytest.Item) -> bool:
    cls = getattr(node, "cls", None)
    return cls is not None and issubclass(cls, unittest.TestCase)


def nearest_first(node: pytest.Item) -> Iterator[tuple[Node, pytest.Mark]]:
    """The ``ddp`` marks of an item with the nodes that have them, the nearest mark first."""
    pairs = node.iter_markers_with_node("ddp")
    for owner, marks in itertools.groupby(pairs, key=lambda pair: pair[0]):
        yield from sorted(marks, key=lambda pair: _distance(owner, pair[1]))


def _distance(owner: Node, mark: pytest.Mark) -> int:
    """Order the marks of one node: pytest lists those of base classes and functions first,
    although those of a subclass and of a ``pytest.param`` are nearer to the test."""
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
