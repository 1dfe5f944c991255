"""Opens a cache on one rank, and records its tensors; the content comes slowly."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ddp_conformance.caches.history import CachedTensor, CacheOpen, Produced
from ddp_conformance.caches.subjects import Cache
from ddp_conformance.framework.case import Case
from ddp_conformance.framework.digests import digest_of
from ddp_conformance.framework.history import Record
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.lockstep.lockstep import Lockstep, in_lockstep

PATIENCE = 0.5
"""Seconds for which the content is held back at most, so that ranks that do not wait are first."""


def content_of(size: int) -> dict[str, Tensor]:
    """The content of a cache of this many samples."""
    generator = torch.Generator().manual_seed(size)
    return {
        "values": torch.randn(size, 3, generator=generator),
        "label": torch.arange(size) * 7 + 1,
    }


class Source:
    """Produces the content of a cache, slowly: only a rank that waits for it reads all of it."""

    def __init__(self, case: Case, readers: int) -> None:
        self._case = case
        self._readers = readers
        self._opened = case.directory.with_name(f"{case.directory.name}-opened")
        self._opened.mkdir(exist_ok=True)
        self.produced: list[Produced] = []

    def __call__(self) -> dict[str, Tensor]:
        """Return the samples, on the CPU, after the ranks that do not wait for them."""
        tensors = content_of(self._case.size)
        digests = tuple((key, digest_of(tensor)) for key, tensor in tensors.items())
        self.produced.append(Produced(self._case.rank, self._case.size, digests))
        self._hold_back()
        return tensors

    def tell_opened(self) -> None:
        """Note that this rank has opened its cache."""
        (self._opened / str(self._case.rank)).touch()

    def _hold_back(self) -> None:
        deadline = time.monotonic() + PATIENCE
        pause = threading.Event()
        others = self._readers - 1
        while len(os.listdir(self._opened)) < others and time.monotonic() < deadline:
            pause.wait(0.005)


def first_look(subject: Cache, case: Case, source: Source) -> tuple[Any, list[Record]]:
    """Open the cache, and record its number of samples and its tensors."""
    cache = subject.make(case, source)
    seen: list[Record] = [
        CacheOpen(case.rank, len(cache)),
        *tensors_seen(subject, cache, case.rank, "opened"),
    ]
    source.tell_opened()
    return cache, seen


def first_look_in_lockstep(
    subject: Cache, case: Case, source: Source, ranks: Ranks
) -> tuple[list[Record], Exception | SystemExit | None]:
    """:func:`first_look` on all ranks, and what this one raised; it closes the cache."""
    found: list[Record] = []
    held: list[Any] = []
    problem: Exception | SystemExit | None = None
    lockstep = Lockstep(ranks)
    try:
        with in_lockstep(lockstep):
            cache, seen = first_look(subject, case, source)
            held.append(cache)
            found += seen
    except (Exception, SystemExit) as error:
        problem = error
    close_after_all(ranks, *held)
    return [*source.produced, *found, *lockstep.calls], problem


def tensors_seen(subject: Cache, cache: Any, rank: int, when: Any) -> Iterator[CachedTensor]:
    """The cache's tensors as this rank has them now."""
    for key, tensor in sorted(subject.tensors(cache).items()):
        yield CachedTensor(
            rank,
            key,
            when,
            str(tensor.device),
            not tensor.requires_grad,
            memory_of(tensor),
            digest_of(tensor),
        )


def memory_of(tensor: Tensor) -> str:
    """The file behind a CPU tensor as ``device inode offset``; empty for private memory."""
    if tensor.device.type != "cpu":
        return ""
    address = tensor.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, device, inode, *_ = line.split()
        begin, end = (int(part, 16) for part in span.split("-"))
        if begin <= address < end and inode != "0":
            return f"{device} {inode} {int(offset, 16) + address - begin}"
    return ""


def close_after_all(ranks: Ranks, *caches: Any) -> None:
    """Close the caches when all ranks have looked at theirs."""
    ranks.gather(None)
    for cache in caches:
        close(cache)


def close(cache: Any) -> None:
    """Close the cache, if it has a method ``close``."""
    if hasattr(cache, "close"):
        cache.close()
