"""What a class of DeepSpeed's ``DistributedTest`` looks like, on both sides."""

from __future__ import annotations

from typing import Any

_OF_A_PROCESS = ("_dist_run", "_dist_init")
"""What a started process runs, in its versions."""


def is_launcher(cls: Any) -> bool:
    """Whether an instance of a class, called, starts processes for its test."""
    return (
        isinstance(cls, type)
        and bool(getattr(cls, "is_dist_test", False))
        and callable(getattr(cls, "_launch_procs", None))
        and any(callable(getattr(cls, name, None)) for name in _OF_A_PROCESS)
        and hasattr(cls, "world_size")
    )
