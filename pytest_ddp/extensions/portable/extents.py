"""Which bytes of memory a tensor has, exactly: views of one buffer may interleave."""

from __future__ import annotations

import ctypes
import math
from typing import Any, TypeAlias

import torch

from pytest_ddp.system.stdlib import zlib

Extent: TypeAlias = tuple[tuple[int, int], ...]
"""Intervals of addresses, from and to, in order and apart from each other."""

_MOST = 4096
"""Intervals of a known extent at most: nothing is said of one with more."""


def extent_of(tensor: torch.Tensor) -> Extent | None:
    """The bytes of a tensor.

    None if it has no memory of its own, or none on a CPU, or no strides, or too many intervals.
    """
    has_strides = tensor.layout == torch.strided and not tensor.is_nested
    if type(tensor).__torch_dispatch__ is not _PLAIN or not has_strides or not tensor.is_cpu:
        return None
    if not tensor.numel():
        return ()
    step = tensor.element_size()
    run = step
    apart: list[tuple[int, int]] = []
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1 or not stride:  # an expanded dimension has the same bytes again
            continue
        if not apart and stride * step == run:
            run *= size
        else:
            apart.append((stride * step, size))
    if math.prod(size for _, size in apart) > _MOST:
        return None
    starts = [tensor.data_ptr()]
    for stride, size in apart:
        starts = [start + n * stride for start in starts for n in range(size)]
    joined: list[tuple[int, int]] = []
    for start in sorted(starts):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], start + run)
        else:
            joined.append((start, start + run))
    return tuple(joined)


def overlap(one: Extent | None, other: Extent | None) -> bool:
    """Whether two tensors share a byte; no where either is unknown."""
    if not one or not other or one[-1][1] <= other[0][0] or other[-1][1] <= one[0][0]:
        return False
    return without(one, other) != one


def without(one: Extent, other: Extent) -> Extent:
    """The bytes of an extent that are not in another one."""
    left: list[tuple[int, int]] = []
    first = 0
    for start, end in one:
        while first < len(other) and other[first][1] <= start:
            first += 1
        place, begin = first, start
        while place < len(other) and other[place][0] < end:
            if begin < other[place][0]:
                left.append((begin, other[place][0]))
            begin = max(begin, other[place][1])
            place += 1
        if begin < end:
            left.append((begin, end))
    return tuple(left)


def checksum_of(extent: Extent) -> int:
    """A checksum of the memory itself: a program's modes would see operators of torch."""
    checksum = 0
    for start, end in extent:
        checksum = zlib.crc32((ctypes.c_char * (end - start)).from_address(start), checksum)
    return checksum


_PLAIN: Any = torch.Tensor.__torch_dispatch__
