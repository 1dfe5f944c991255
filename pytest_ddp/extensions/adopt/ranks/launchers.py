"""Recognises DeepSpeed's ``DistributedTest`` classes, in the pytest process and in ranks."""

from __future__ import annotations

from typing import Any

_OF_A_PROCESS = ("_dist_run", "_dist_init")
"""The method that a started process runs, by its names in several versions."""


def is_launcher(cls: Any) -> bool:
    """Whether calling an instance of the class starts processes for its test."""
    return (
        isinstance(cls, type)
        and bool(getattr(cls, "is_dist_test", False))
        and callable(getattr(cls, "_launch_procs", None))
        and any(callable(getattr(cls, name, None)) for name in _OF_A_PROCESS)
        and hasattr(cls, "world_size")
    )


def asked_sizes(function: Any, cls: Any) -> object:
    """The world size that such a test declares, before its fixtures run; a list is run in turn.

    The nearest mark of the function wins, as in the harness, which reads no other marks.
    """
    marks = (mark for mark in getattr(function, "pytestmark", ()) if mark.name == "world_size")
    if (mark := next(marks, None)) is not None:
        return mark.args[0] if mark.args else None
    world_size: object = cls.world_size
    return world_size
