"""Memory with values that torch does not promise, and what is computed from them.

``torch.distributed.reduce``: "Only the process with rank ``dst`` is going to receive the final
result." gloo computes in the tensors of all ranks, which then have parts of the sum; NCCL leaves
the input of each. A program may compute with either on all ranks, and use what comes of it on the
destination alone. So values are followed through operators of torch until the program looks at one:
makes a number or a bool of it, or sends it to other ranks.

Memory that is written otherwise is forgotten: by a checksum where the write is not seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.multiprocessing import reductions

from pytest_ddp.extensions.portable.extents import Extent, checksum_of, extent_of, without
from pytest_ddp.extensions.portable.issued import IssuedOperation
from pytest_ddp.system.stdlib import threading

_WeakStorage: Any = reductions.StorageWeakRef  # untyped
_KEPT = 2048
"""The number of regions from which on those whose memory is freed are dropped."""


@dataclass(slots=True)
class _Region:
    """A part of a storage."""

    storage: Any
    """A weak reference, since the program must be able to free it; while there is one, no other
    storage has its address."""
    base: int
    """The address of its memory: a storage may get another one."""
    extent: Extent
    checksum: int
    operation: IssuedOperation
    """The operation that the values come from."""


class Part(NamedTuple):
    """The unspecified elements of a tensor."""

    operation: IssuedOperation
    is_whole: bool
    shape: torch.Size
    elements: Extent | None
    """Intervals in the order of memory; None for a tensor that is not contiguous."""

    def bytes_of(self, tensor: torch.Tensor) -> Extent:
        """The bytes of a tensor that is computed from this one element by element.

        None of them where it is not known which element comes from which.
        """
        extent = extent_of(tensor) or ()
        if self.is_whole or not extent:
            return extent
        if self.elements is None or self.shape != tensor.shape or not tensor.is_contiguous():
            return ()
        start, size = tensor.data_ptr(), tensor.element_size()
        return tuple((start + size * first, start + size * end) for first, end in self.elements)


class Unspecified:
    """The unspecified values of a rank."""

    def __init__(self) -> None:
        self._regions: dict[int, _Region] = {}
        """Regions by their storage."""
        self._threads: set[int] = set()
        self._limit = _KEPT
        self._lock = threading.RLock()

    def follows(self, thread: int) -> bool:
        """Whether operators of a thread have to be seen."""
        if thread not in self._threads:
            return False
        with self._lock:
            self._drop_freed()
        return bool(self._regions)

    @property
    def is_empty(self) -> bool:
        return not self._regions

    def clear(self) -> None:
        self._regions.clear()

    def part_of(self, tensor: torch.Tensor) -> Part | None:
        """The unspecified elements of a tensor; None if there are none."""
        if not self._regions:
            return None
        with self._lock:
            extent = extent_of(tensor) or ()
            region = self._region(tensor) if extent else None
            if region is None or (rest := without(extent, region.extent)) == extent:
                return None
            if checksum_of(region.extent) != region.checksum:  # written by what is not seen
                del self._regions[region.storage.cdata]
                return None
            elements = None
            if tensor.is_contiguous():
                start, size = tensor.data_ptr(), tensor.element_size()
                elements = tuple(
                    ((first - start) // size, -((start - end) // size))
                    for first, end in without(extent, rest)
                )
            return Part(region.operation, not rest, tensor.shape, elements)

    def leave(self, tensors: Iterable[torch.Tensor], operation: IssuedOperation) -> None:
        """Values of an operation, or what was computed from some, are in these tensors."""
        for tensor in tensors:
            self.leave_in(tensor, extent_of(tensor) or (), operation)

    def leave_in(self, tensor: torch.Tensor, extent: Extent, operation: IssuedOperation) -> None:
        """Values of an operation are in some of the bytes of a tensor, as for :meth:`leave`."""
        if not extent:
            return
        with self._lock:
            self._threads.add(threading.get_ident())
            known, storage = self._region(tensor), tensor.untyped_storage()
            weak = _WeakStorage(storage) if known is None else known.storage
            rest = () if known is None else without(known.extent, extent)
            both = tuple(sorted((*rest, *extent)))
            self._put(_Region(weak, storage.data_ptr(), both, 0, operation))
            if len(self._regions) > self._limit:
                self._drop_freed()
                self._limit = max(_KEPT, 2 * len(self._regions))

    def overwrite(self, tensors: Iterable[torch.Tensor]) -> None:
        """Other values are in these tensors."""
        if not self._regions:
            return
        with self._lock:
            for tensor in tensors:
                if not (extent := extent_of(tensor)) or not (region := self._region(tensor)):
                    continue
                region.extent = without(region.extent, extent)
                if region.extent:
                    self._put(region)
                else:
                    del self._regions[region.storage.cdata]

    def _region(self, tensor: torch.Tensor) -> _Region | None:
        storage = tensor.untyped_storage()
        region = self._regions.get(storage._cdata)
        if region is None or region.base == storage.data_ptr():
            return region
        del self._regions[storage._cdata]
        return None

    def _put(self, region: _Region) -> None:
        region.checksum = checksum_of(region.extent)
        self._regions[region.storage.cdata] = region

    def _drop_freed(self) -> None:
        for key in [key for key, region in self._regions.items() if region.storage.expired()]:
            del self._regions[key]
