"""Check a cache file whole, and make a sound one of what is left of it."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from .format import (
    CacheError,
    Layout,
    Manifest,
    Problem,
    data_problems,
    layout_problems,
    read_layout,
    write,
)


def check(path: Path) -> tuple[Problem, ...]:
    """All that is wrong with the file, its data included; empty for a sound cache."""
    try:
        layout = read_layout(path)
    except CacheError as error:
        return error.problems
    found = layout_problems(layout)
    if found or layout.manifest is None:
        return found
    return data_problems(path, layout.manifest, _load(path))


def repair(path: Path, output: Path) -> Manifest:
    """Write a sound cache of ``path``'s tensors to ``output``, by default in its place.

    Mended: tensors saved from a GPU (their bytes are in the file), views, gradients,
    misaligned data, a missing manifest. Refused with CacheError, since nothing in the
    file can tell the right content: meta tensors, data that differ from their digest,
    truncated files, unequal lengths.
    """
    layout = read_layout(path)
    lost = tuple(problem for problem in layout_problems(layout) if problem.device == "meta")
    if lost:
        raise CacheError(lost)
    tensors = _load(path)
    changed = _changed(layout, tensors)
    if changed:
        raise CacheError(changed)
    source = f"repaired from {path.name}" if layout.manifest is None else layout.manifest.source
    return write(output, tensors, source)


def _changed(layout: Layout, tensors: Mapping[str, Tensor]) -> tuple[Problem, ...]:
    if layout.manifest is None or layout.manifest.digests.keys() != tensors.keys():
        return ()
    return data_problems(layout.file, layout.manifest, tensors)


def _load(path: Path) -> dict[str, Tensor]:
    content = torch.load(path, weights_only=True, map_location="cpu")
    tensors = content.get("tensors", content)
    return {str(key): tensor.detach() for key, tensor in tensors.items()}
