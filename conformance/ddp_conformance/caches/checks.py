"""MEM-01 to MEM-04: samples in memory that all ranks and their workers share.

A cache is opened on all ranks of the test, as a training script opens it, and read to the
end by every rank's workers. What counts is where its bytes lie and what they are; that a
tensor says ``is_shared()`` is no evidence, since any CUDA tensor says so.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ddp_conformance.caches import judge
from ddp_conformance.caches.history import CachedTensor, CacheOpen, DeviceUse, Produced
from ddp_conformance.caches.subjects import Cache
from ddp_conformance.frame.case import Case, worker_number
from ddp_conformance.frame.digests import digest_of
from ddp_conformance.frame.history import Record, Refused, Run
from ddp_conformance.frame.ranks import Ranks
from ddp_conformance.frame.recording import cases_of, judge_each, record, record_once
from ddp_conformance.frame.registry import Check, Guarantee
from ddp_conformance.frame.verdict import Violation

T = TypeVar("T")

MEM_01 = Guarantee(
    "MEM-01",
    "The tensors of a shared cache MUST be on the CPU, carry no gradient and be one memory for "
    "all ranks of a machine; a file that holds a tensor of another device MUST be refused on all "
    "ranks or put right.",
)
MEM_02 = Guarantee("MEM-02", "Reading samples MUST NOT change the cache.")
MEM_03 = Guarantee(
    "MEM-03",
    "A cache MUST be built once and be complete before any rank reads it; all ranks MUST see the "
    "same number of samples and the same content.",
    tier=2,
)
MEM_04 = Guarantee(
    "MEM-04",
    "CUDA MUST NOT be initialised in a process that forks workers, nor in a worker.",
    tier=2,
)

PATIENCE = 0.5
"""Seconds for which the content is held back, while a rank does not wait for it as it should."""


def record_reading(subject: Cache, ranks: Ranks, workers: int) -> tuple[Run, ...]:
    """Open and read a cache, once for the four guarantees that are judged on it."""
    cases = cases_of(ranks, (2 * ranks.world_size + 3,), (workers,))
    return record_once(subject, ranks, cases, lambda s, case: reading(s, case, ranks), "reading")


def reading(subject: Cache, case: Case, ranks: Ranks) -> Iterator[Record]:
    """Open the cache, look at it, read all samples in every rank, look at it again."""
    source = Source(case)
    # Looked at before any other rank is waited for, and read when all have looked.
    opened = on_all(ranks, lambda: first_look(subject, case, source))
    yield from source.produced
    if opened is None:
        return
    cache, seen = opened
    yield from seen
    used = on_all(ranks, lambda: read_all(cache, case))
    yield from used or ()
    yield from tensors_seen(subject, cache, case.rank, "read")
    ranks.gather(None)  # nobody closes before all have looked
    close(cache)


def opening(subject: Cache, case: Case) -> Iterator[Record]:
    """Try to open what :attr:`Cache.spoil` has left."""
    source = Source(case)
    try:
        cache = subject.make(case, source)
    except Exception as error:
        yield Refused(case.rank, type(error).__name__)
        return
    yield CacheOpen(case.rank, len(cache))
    yield from tensors_seen(subject, cache, case.rank, "opened")
    close(cache)


def first_look(subject: Cache, case: Case, source: Source) -> tuple[Any, list[Record]]:
    """Open the cache, and say what is in it."""
    cache = subject.make(case, source)
    seen: list[Record] = [
        CacheOpen(case.rank, len(cache)),
        *tensors_seen(subject, cache, case.rank, "opened"),
    ]
    source.tell_opened()
    return cache, seen


def on_all(ranks: Ranks, act: Callable[[], T]) -> T | None:
    """What ``act`` returns; None where it raised on another rank, for then nothing goes on."""
    error: Exception | None = None
    result: T | None = None
    try:
        result = act()
    except Exception as raised:
        error = raised
    failed = any(ranks.gather(error is not None))
    if error is not None:
        raise error
    return None if failed else result


class Source:
    """What a cache is built of. It comes slowly: only who waits for it reads all of it."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._opened = case.directory.with_name(f"{case.directory.name}-opened")
        self._opened.mkdir(exist_ok=True)
        self.produced: list[Produced] = []

    def __call__(self) -> dict[str, Tensor]:
        """The samples, on the CPU; the ranks that do not wait for them come through first."""
        generator = torch.Generator().manual_seed(self._case.size)
        tensors = {
            "values": torch.randn(self._case.size, 3, generator=generator),
            "label": torch.arange(self._case.size) * 7 + 1,
        }
        digests = tuple((key, digest_of(tensor)) for key, tensor in tensors.items())
        self.produced.append(Produced(self._case.rank, self._case.size, digests))
        self._hold_back()
        return tensors

    def tell_opened(self) -> None:
        """This rank has its cache."""
        (self._opened / str(self._case.rank)).touch()

    def _hold_back(self) -> None:
        deadline = time.monotonic() + PATIENCE
        pause = threading.Event()
        others = self._case.world_size - 1
        while len(os.listdir(self._opened)) < others and time.monotonic() < deadline:
            pause.wait(0.005)


@dataclass(frozen=True)
class Reader(Dataset[tuple[int, bool]]):
    """Item i reads sample i, and tells which worker did, and whether it has CUDA then."""

    cache: Any

    def __len__(self) -> int:
        return len(self.cache)

    def __getitem__(self, index: int) -> tuple[int, bool]:
        self.cache[index]
        return worker_number(), cuda_initialised()


_forks: list[bool] = []
"""For each fork of this process since :func:`read_all` began: whether CUDA was initialised."""


def read_all(cache: Any, case: Case) -> list[DeviceUse]:
    """Read every sample with the case's workers, and tell who had CUDA initialised."""
    _watch_forks()
    _forks.clear()
    loader = DataLoader(Reader(cache), batch_size=None, num_workers=case.num_workers)
    seen = {(int(worker), bool(initialised)) for worker, initialised in loader}
    return [
        *(DeviceUse(case.rank, -1, initialised) for initialised in sorted(set(_forks))),
        *(DeviceUse(case.rank, *use) for use in sorted(seen) if case.num_workers),
    ]


def cuda_initialised() -> bool:
    """Whether this process has; false in a fork of one that had."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _watch_forks() -> None:
    if not getattr(_watch_forks, "done", False):
        os.register_at_fork(before=lambda: _forks.append(cuda_initialised()))
        vars(_watch_forks)["done"] = True


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


def close(cache: Any) -> None:
    """Let go of the memory, where the cache has a word for it."""
    if hasattr(cache, "close"):
        cache.close()


def find_misplaced(subject: Cache, ranks: Ranks) -> tuple[Violation, ...]:
    """MEM-01."""
    runs = record_reading(subject, ranks, workers=0)
    found = judge_each(runs, lambda run: judge.judge_placement(run.history))
    if subject.spoil is None:
        return found
    spoiled = replace(subject, prepare=subject.spoil)
    refused = record(spoiled, ranks, cases_of(ranks, (5,)), opening)
    return (*found, *judge_each(refused, lambda run: judge.judge_refusal(run.history)))


def find_changes(subject: Cache, ranks: Ranks) -> tuple[Violation, ...]:
    """MEM-02."""
    runs = [run for workers in (0, 2) for run in record_reading(subject, ranks, workers)]
    return judge_each(runs, lambda run: judge.judge_unchanged(run.history))


def find_bad_build(subject: Cache, ranks: Ranks) -> tuple[Violation, ...]:
    """MEM-03."""
    runs = record_reading(subject, ranks, workers=0)
    return judge_each(runs, lambda run: judge.judge_built_once(run.history))


def find_device_use(subject: Cache, ranks: Ranks) -> tuple[Violation, ...]:
    """MEM-04."""
    runs = record_reading(subject, ranks, workers=2)
    return judge_each(runs, lambda run: judge.judge_device_use(run.history))


CHECKS = (
    Check(MEM_01, (Cache,), find_misplaced),
    Check(MEM_02, (Cache,), find_changes),
    Check(MEM_03, (Cache,), find_bad_build),
    Check(MEM_04, (Cache,), find_device_use),
)
