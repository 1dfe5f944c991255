"""The line of a subject's code that makes a call, for use in texts."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

import pytest_ddp

_OURS = f"{Path(__file__).parents[1]}/"
_MUTANTS = "/mutants/"
_PLUGIN = f"{Path(pytest_ddp.__file__).parent}/"

BEGINNINGS = tuple(f"{_OURS}framework/{name}.py" for name in ("recording", "registry"))
"""Files in which a check begins: frames from there outwards belong to the check and the test."""

_TRAINING = ("torch", "torchmetrics", "lightning", "pytorch_lightning", "lightning_utilities")
"""Packages that a subject's code calls, and that call it."""

_INSTALLED = ("/site-packages/", "/dist-packages/")


def is_training_library(file: str) -> bool:
    """Whether a file belongs to torch or Lightning.

    Decided by the folder of the installed package, as a user's project may be in a folder called
    ``torch``.
    """
    return file.startswith(_training_folders())


@cache
def _training_folders() -> tuple[str, ...]:
    specs = [find_spec(name) for name in _TRAINING]
    places = [spec.submodule_search_locations or [] for spec in specs if spec is not None]
    return tuple(f"{place}/" for found in places for place in found)


@cache
def _is_standard(file: str) -> bool:
    folder = f"{sysconfig.get_path('stdlib')}/"
    frozen = file.startswith("<frozen ")
    return frozen or (file.startswith(folder) and not _is_installed(file))


def _is_installed(file: str) -> bool:
    return is_training_library(file) or any(part in file for part in _INSTALLED)


def is_library(file: str) -> bool:
    """Whether a file is installed, or comes with Python."""
    return _is_installed(file) or _is_standard(file)


def is_ours(file: str) -> bool:
    """Whether a file belongs to the checks; their mutants count as users' code."""
    return file.startswith(_OURS) and _MUTANTS not in file[len(_OURS) - 1 :]


def is_users(file: str) -> bool:
    """Whether a file belongs to the user: not to the checks, pytest-ddp, a library or Python."""
    ours = is_ours(file) or file.startswith(_PLUGIN)
    return bool(file) and not (ours or is_library(file))


def callers(innermost: FrameType | None = None) -> Iterator[FrameType]:
    """The frames that are not ours, from this call or ``innermost`` outwards to the check."""
    frame: FrameType | None = innermost or sys._getframe(1)
    while frame is not None and (file := frame.f_code.co_filename) not in BEGINNINGS:
        if not is_ours(file) and not file.startswith(_PLUGIN):
            yield frame
        frame = frame.f_back


def call_site(innermost: FrameType | None = None) -> str:
    """File and line of the innermost frame of the user's, from this call or ``innermost``.

    If all frames belong to libraries: the innermost method of a class that is not torch's, else
    the innermost method, else the innermost frame. Empty without frames.
    """
    frames = [f for f in callers(innermost) if not _is_standard(f.f_code.co_filename)]
    for frame in frames:
        if is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
    methods = [frame for frame in frames if "self" in frame.f_locals]
    not_torchs = [frame for frame in methods if _package_of(frame) != "torch"]
    for frame in (*not_torchs, *methods, *frames):
        return _in_library(frame)
    return ""


def _package_of(frame: FrameType) -> str:
    return type(frame.f_locals["self"]).__module__.partition(".")[0]


def _in_library(frame: FrameType) -> str:
    owner = frame.f_locals.get("self")
    name = frame.f_code.co_name if owner is None else type(owner).__qualname__
    return f"{name}, {_short(frame.f_code.co_filename)}:{frame.f_lineno}"


def _short(file: str) -> str:
    """The path without the folder that packages are installed in."""
    for part in _INSTALLED:
        file = file.rpartition(part)[2]
    for folder in _training_folders():
        if file.startswith(folder):
            return str(Path(file).relative_to(Path(folder).parent))
    return file
