"""The kind of subject that holds samples in memory for all ranks and their workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.subjects import Subject


def tensors_of(cache: Any) -> Mapping[str, Tensor]:
    """The tensors of a cache: the cache itself if it is a mapping, or its ``tensors``.

    Raises ``TypeError`` for a cache that has none in either way.
    """
    held = cache if isinstance(cache, Mapping) else getattr(cache, "tensors", None)
    if not isinstance(held, Mapping):
        raise TypeError(
            f"a cache of type {type(cache).__name__} shows no tensors; pass Cache(tensors=...), a "
            "function that returns the cache's own tensors (no copies) by key"
        )
    return held


@dataclass(frozen=True)
class Cache(Subject):
    """Precomputed samples that all ranks of a machine and all their workers read.

    ``make(case, produce)`` opens it on every rank, in the ranks' process group, with its
    files below ``case.directory``. Where the cache has to be built, ``produce()`` gives its
    content: ``case.size`` samples as ``values`` (n, 3) float32 and ``label`` (n,) int64 on
    the CPU. What it returns is a map-style data set: ``len(cache)`` and ``cache[i]``.
    """

    kind: ClassVar[str] = "cache"

    tensors: Callable[[Any], Mapping[str, Tensor]] = tensors_of
    """Returns the cache's own tensors by key, not copies."""
    spoil: Callable[[Case], None] | None = None
    """Called on rank 0 before ``make``: leaves files that hold a tensor of another device
    than the CPU. ``make`` must then raise on all ranks, or bring the tensor to the CPU."""
