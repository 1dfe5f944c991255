"""The rules for the values of options and marks, and the texts of their errors.

A rule takes any value and returns it with its type checked, or raises a ValueError with the allowed
values, but not the place. The place is added by :mod:`pytest_ddp.settings.options`, with the
functions at the end.
"""

from __future__ import annotations

import enum
import re
import reprlib
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeGuard, TypeVar

import pytest

if TYPE_CHECKING:
    from _pytest.nodes import Node  # pytest exports its subclasses only

WorldSize: TypeAlias = int | Literal["gpus"]
Choice = TypeVar("Choice", bound=enum.StrEnum)

AUTO = "auto"
"""The backend that follows from the devices."""
ACCELERATORS = ("cuda", "xpu")
"""Kinds of devices that are counted and leased."""
DEVICES = ("cpu", *ACCELERATORS, "meta")

MAX_LOCAL_WORLD_SIZE = 64
"""Each rank is a process with torch in it; more of them on one machine is a typing error."""
MAX_WORLD_SIZE = 4096
"""The most ranks, on all machines together. The pytest process is connected to each rank; more are
untested."""
MAX_TIMEOUT = 7 * 24 * 3600.0
"""Seconds. More than a week is a wrong unit; with much more, waiting calls overflow."""
MAX_SEED = 2**32 - 1
"""The largest seed, as in NumPy."""

OWNED_VARIABLES = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "ROLE_NAME",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS",
    }
)
"""Variables that the plugin sets for each rank: in a mark they would contradict the plan."""

HIDING_VARIABLES = frozenset(
    {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"}
)
"""Variables that hide GPUs: a mark would set them after GPUs were counted and leased."""

SIZE = f"a world size is a whole number from 1 to {MAX_WORLD_SIZE}"
BACKEND = (
    "the backend is auto, a name such as gloo or nccl, or one for each device type, such as "
    "cpu:gloo,cuda:nccl"
)
DEVICE = "the device is one of cpu, cuda, xpu and meta"
LOCAL_SIZE = f"one machine takes a whole number of ranks from 1 to {MAX_LOCAL_WORLD_SIZE}"
SHARING = f"ranks_per_gpu is a whole number from 1 to {MAX_LOCAL_WORLD_SIZE}"
NODES = f"a number of machines is a whole number from 1 to {MAX_WORLD_SIZE}"
SECONDS = f"a timeout is a number of seconds above 0, at most {MAX_TIMEOUT:.0f} (a week)"
SEED = f"a seed is a whole number from 0 to {MAX_SEED}"
BOOL = "it is either True or False"

_NAME = r"[a-z_][\w.-]*"
_BACKEND = re.compile(rf"{_NAME}|{_NAME}:{_NAME}(,{_NAME}:{_NAME})*")


def check_size(value: object) -> int:
    """One world size."""
    if not _is_int(value):
        raise ValueError(SIZE)
    if value < 1:
        raise ValueError(f"a process group has at least 1 rank; {SIZE}")
    if value > MAX_WORLD_SIZE:
        raise ValueError(f"each rank is a process, so {SIZE}")
    return value


def check_sizes(value: object) -> tuple[tuple[WorldSize, ...], bool]:
    """The world size of a mark: the sizes, and whether they were in a list."""
    if not isinstance(value, list | tuple | range):
        return (_check_size_or_gpus(value),), False
    if not value:
        raise ValueError("an empty list runs the test at no world size. Name at least one")
    sizes = tuple(_check_size_or_gpus(size) for size in value)
    for size in sizes:
        if sizes.count(size) > 1:
            raise ValueError(f"{size} is in the list more than once. Remove the duplicate")
    return sizes, True


def check_backend(value: object) -> str:
    """A backend in torch's syntax; in lower case, as torch stores it."""
    if not isinstance(value, str):
        raise ValueError(BACKEND)
    text = value.lower()
    if not _BACKEND.fullmatch(text):
        raise ValueError(BACKEND)
    named = pairs(text)
    devices = [device for device, _ in named]
    if twice := next((device for device in devices if devices.count(device) > 1), None):
        raise ValueError(f"{twice} has more than one backend. Name one for each device type")
    if any(name == "mpi" for _, name in named):
        raise ValueError(
            "ranks of MPI are started by mpirun, not by this plugin. Name another, such as gloo"
        )
    if ":" in text and any(name == AUTO for _, name in named):
        raise ValueError(f"auto cannot be combined with a device type; {BACKEND}")
    return text


def pairs(backend: str) -> list[tuple[str, str]]:
    """The device types in a backend's text with their backends; "" for a backend without one."""
    parts = (pair.rpartition(":") for pair in backend.split(","))
    return [(device, name) for device, _, name in parts]


def check_device(value: object) -> str:
    """One device type."""
    if isinstance(value, str) and value in DEVICES:
        return value
    if isinstance(value, str) and value.partition(":")[0] in ACCELERATORS:
        raise ValueError(f"{DEVICE}; the plugin decides which GPU a rank gets")
    raise ValueError(DEVICE)


def check_device_or_none(value: object) -> str | None:
    """One device type; None for an empty text."""
    return None if value == "" else check_device(value)


def check_sharing(value: object) -> int:
    """How many ranks share a GPU."""
    if _is_int(value) and 1 <= value <= MAX_LOCAL_WORLD_SIZE:
        return value
    raise ValueError(SHARING)


def check_seconds(value: object) -> float:
    """A timeout in seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(SECONDS)
    if not 0 < value <= MAX_TIMEOUT:  # also refuses NaN
        raise ValueError(SECONDS)
    return float(value)


def check_seed(value: object) -> int:
    """A seed of a random number generator."""
    if _is_int(value) and 0 <= value <= MAX_SEED:
        return value
    raise ValueError(SEED)


def check_seed_or_same(value: object) -> int | Literal["same"]:
    """A seed, or ``"same"`` for the same one on all ranks."""
    if isinstance(value, str) and value == "same":
        return "same"
    try:
        return check_seed(value)
    except ValueError as error:
        raise ValueError(f'{error}, or "same" for the same seed on every rank') from None


def check_bool(value: object) -> bool:
    """A boolean, not a number."""
    if isinstance(value, bool):
        return value
    raise ValueError(BOOL)


def check_name(value: object) -> str:
    """A text that is not empty."""
    if isinstance(value, str) and value:
        return value
    raise ValueError("it is a name, a text that is not empty")


def check_directory(value: object) -> Path | None:
    """A directory that need not exist yet; None for an empty name."""
    if not isinstance(value, str):
        raise ValueError("it is the name of a directory")
    if not value:
        return None
    path = Path(value).absolute()
    if path.exists() and not path.is_dir():
        raise ValueError("there is a file of this name; name a directory")
    return path


def check_url_or_empty(value: object) -> str:
    """An address, with a slash at its end; or an empty text."""
    if value == "":
        return ""
    if isinstance(value, str) and re.match(r"(https?|file)://.", value):
        return f"{value.rstrip('/')}/"
    raise ValueError("it is an address that begins with https://, http:// or file://")


def check_rank(value: object) -> int | None:
    """Return a rank that is given as text or number; None for an empty text."""
    if value == "":
        return None
    text = str(value)
    if not text.isdecimal():
        raise ValueError("it is a rank, 0 or higher")
    return int(text)


def check_local_size_or_none(value: object) -> int | None:
    """Return a number of ranks on one machine, given as text or number; None for an empty text."""
    if value == "":
        return None
    text = str(value)
    if text.isdecimal() and 1 <= int(text) <= MAX_LOCAL_WORLD_SIZE:
        return int(text)
    raise ValueError(LOCAL_SIZE)


def check_nodes(value: object) -> int:
    """The number of machines of a test."""
    if _is_int(value) and 1 <= value <= MAX_WORLD_SIZE:
        return value
    raise ValueError(NODES)


def check_env(value: object) -> tuple[tuple[str, str], ...]:
    """Environment variables, as pairs of name and value."""
    if not isinstance(value, dict):
        raise ValueError('env is a dict of strings, such as {"NCCL_DEBUG": "INFO"}')
    return tuple(_check_variable(name, text) for name, text in value.items())


def check_member(choices: type[Choice]) -> Callable[[object], Choice]:
    """Return the rule for an option that is an enumeration."""

    def check(value: object) -> Choice:
        for choice in choices:
            if isinstance(value, str) and value == choice.value:
                return choice
        raise ValueError(f"it is one of {enumerated(choices)}")

    return check


def check_members(choices: type[Choice]) -> Callable[[object], frozenset[Choice]]:
    """Return the rule for a list of an enumeration's words, separated by commas or blanks."""

    def check(value: object) -> frozenset[Choice]:
        words = str(value).replace(",", " ").split()
        by_word = {choice.value: choice for choice in choices}
        if words == ["all"]:
            return frozenset(choices)
        if not isinstance(value, str) or not by_word.keys() >= set(words):
            raise ValueError(f"it is all, or a list of {' and '.join(by_word)}")
        return frozenset(by_word[word] for word in words)

    return check


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_size_or_gpus(value: object) -> WorldSize:
    if isinstance(value, str) and value == "gpus":
        return "gpus"
    try:
        return check_size(value)
    except ValueError as error:
        raise ValueError(
            f'{error}. Write one, such as 4, a list of them, such as [1, 2, 4], or "gpus" for '
            f"one rank on each GPU"
        ) from None


def _check_variable(name: object, text: object) -> tuple[str, str]:
    if not isinstance(name, str) or not isinstance(text, str):
        raise ValueError(
            f"names and values of environment variables are strings, unlike "
            f"{shown(name)}: {shown(text)}"
        )
    if not name or "=" in name or "\0" in name + text:
        raise ValueError(
            f"{shown(name)}: {shown(text)} cannot be an environment variable. A name must not be "
            f"empty or contain =, and neither name nor value may contain a NUL character"
        )
    if name in OWNED_VARIABLES:
        raise ValueError(
            f"{name} is set for each rank by the plugin. Leave it out: world_size is the number "
            f"of ranks, and with init=False the test calls init_process_group itself"
        )
    if name in HIDING_VARIABLES:
        raise ValueError(
            f"{name} is read before a rank gets its GPU. Set it in the environment of pytest, or "
            f'leave it out: with device="cpu" a test uses no GPU'
        )
    return name, text


# ------------------------------------------------------------- the error texts


def shown(value: object) -> str:
    """Return a repr that never fails and is never long."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 50
    return short.repr(value)


def enumerated(names: Iterable[str]) -> str:
    """Return "a, b and c"."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def option_error(text: str) -> pytest.UsageError:
    """Return the error for a wrong option; ``text`` names option, value and fix."""
    return pytest.UsageError(_wrapped(text, len("ERROR: ")))


def mark_error(item: Node, text: str, owner: Node | None = None) -> pytest.UsageError:
    """Return the error for a test with a wrong ``ddp`` mark.

    Args:
        item: the test; its node id is the first line.
        text: sentences that name the value and the fix.
        owner: the class or module with the mark, if it is not on the test itself.
    """
    if owner is not None and owner is not item:
        text = f"{text} (The mark is on {owner.nodeid}.)"
    return pytest.UsageError(f"{item.nodeid}\n  {_wrapped(text, 2)}")


def _wrapped(text: str, column: int) -> str:
    """Wrap at 79 columns; the first line begins at ``column``, the others at 2."""
    filled = textwrap.fill(
        text,
        79,
        initial_indent=" " * column,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled[column:]
