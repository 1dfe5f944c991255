"""Keeps torch.compile from compiling frames of the plugin.

Inside a compiled region, dynamo looks at every Python frame that it has not traced. It would
compile ours as if they were the test's, and count and log that. Frames that are traced into a graph
need something else: ours check ``torch.compiler.is_compiling()`` first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import pytest_ddp
from pytest_ddp.system.stdlib import inspect

_PACKAGE = "pytest_ddp"
_FOLDER = str(pytest_ddp.__file__).rpartition("/")[0] + "/"
_hidden: set[str] = set()
"""Modules whose code is marked; a host marks most for its ranks, which takes 25 ms."""


def hide_own_frames_now() -> None:
    """Mark all modules that are imported now, if the compiler is imported."""
    if eval_frame := sys.modules.get("torch._dynamo.eval_frame"):
        hide_own_frames(eval_frame)


def hide_own_frames(eval_frame: Any) -> None:
    """Mark all code of the plugin's modules that are imported now.

    Args:
        eval_frame: ``torch._dynamo.eval_frame``, once it is imported.
    """
    skip = getattr(eval_frame, "skip_code", None)
    if skip is None:  # missing in an older or newer torch
        return
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == _PACKAGE and name not in _hidden:
            _hidden.add(name)
            for value in list(vars(module).values()):
                if getattr(value, "__module__", None) == name:  # skips what the module imports
                    for code in _codes_of(value):
                        skip(code)


def _codes_of(value: Any) -> Iterator[CodeType]:
    found = getattr(value, "__func__", getattr(value, "fget", value))
    if isinstance(found, FunctionType):
        yield from _with_inner(inspect.unwrap(found).__code__)
    elif isinstance(found, type) and found.__module__.partition(".")[0] == _PACKAGE:
        for attribute in list(vars(found).values()):
            yield from _codes_of(attribute)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    # A decorator of the standard library has its own code, which other functions share: skipped.
    # Code from text, such as a named tuple's methods, has no file.
    if code.co_filename.startswith((_FOLDER, "<")):
        yield code
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _with_inner(constant)
