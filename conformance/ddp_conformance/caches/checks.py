"""MEM-01 to MEM-04 and MEM-07: samples in memory that all ranks and their workers share.

A cache is opened on all ranks of the test, as a training script opens it, and read to the
end by every rank's workers. What counts is where its bytes lie and what they are;
``is_shared()`` is no evidence, since it is true for any CUDA tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from ddp_conformance.caches import judge
from ddp_conformance.caches.cache_machines import find_bad_build_on_machines
from ddp_conformance.caches.history import CacheOpen, DeviceUse
from ddp_conformance.caches.killing import find_bad_rebuild
from ddp_conformance.caches.opening import Source, close, first_look, tensors_seen
from ddp_conformance.caches.subjects import Cache
from ddp_conformance.framework.case import Case, worker_number
from ddp_conformance.framework.failures import failures
from ddp_conformance.framework.history import Record, Refused, Run
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.framework.recording import (
    cases_of,
    judge_each,
    on_all,
    record,
    record_once,
)
from ddp_conformance.framework.registry import Check, Guarantee
from ddp_conformance.framework.verdict import Violation

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
    "A worker that reads samples MUST NOT initialise CUDA.",
    tier=2,
)
MEM_07 = Guarantee(
    "MEM-07",
    "If a builder of a cache was killed after the first write to a new file, the cache MUST be "
    "rebuilt in the next session, or its opening MUST fail on all ranks; it MUST NOT be short or "
    "hold other content.",
    tier=2,
)


def record_reading(subject: Cache, ranks: Ranks, workers: int) -> tuple[Run, ...]:
    """Open and read a cache, once for the guarantees that are judged on it."""
    cases = cases_of(ranks, (2 * ranks.world_size + 3,), (workers,))
    return record_once(subject, ranks, cases, lambda s, case: reading(s, case, ranks), "reading")


def reading(subject: Cache, case: Case, ranks: Ranks) -> Iterator[Record]:
    """Open the cache, look at it, read all samples in every rank, look at it again."""
    source = Source(case, case.world_size)
    # Recorded before this rank waits for any other, and read when all have recorded.
    cache, seen = on_all(ranks, lambda: first_look(subject, case, source))
    yield from source.produced
    yield from seen
    # No rank closes before all have looked.
    yield from on_all(
        ranks,
        lambda: [*read_all(cache, case), *tensors_seen(subject, cache, case.rank, "read")],
    )
    close(cache)


def opening(subject: Cache, case: Case) -> Iterator[Record]:
    """Try to open what :attr:`Cache.spoil` has left."""
    source = Source(case, case.world_size)
    try:
        cache = subject.make(case, source)
    except failures() as error:
        yield Refused(case.rank, type(error).__name__)
        return
    yield CacheOpen(case.rank, len(cache))
    yield from tensors_seen(subject, cache, case.rank, "opened")
    close(cache)


@dataclass(frozen=True)
class CacheReader(Dataset[tuple[int, bool]]):
    """Reads sample i; returns the number of the worker, and whether it uses CUDA."""

    cache: Any

    def __len__(self) -> int:
        return len(self.cache)

    def __getitem__(self, index: int) -> tuple[int, bool]:
        try:
            self.cache[index]
        except RuntimeError as error:
            # Of torch's _lazy_init. In a fork of a process that has initialised CUDA, as a rank
            # with a GPU has, is_initialized() is never true.
            if "re-initialize CUDA in forked subprocess" not in str(error):
                raise
            return worker_number(), True
        return worker_number(), bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def read_all(cache: Any, case: Case) -> list[DeviceUse]:
    """Read every sample with the case's workers; record which of these use CUDA."""
    loader = DataLoader(CacheReader(cache), batch_size=None, num_workers=case.num_workers)
    seen = {(int(worker), bool(used)) for worker, used in loader}
    return [DeviceUse(case.rank, *use) for use in sorted(seen) if case.num_workers]


def find_misplaced(subject: Cache, ranks: Ranks) -> tuple[Violation, ...]:
    """Check MEM-01."""
    runs = record_reading(subject, ranks, workers=0)
    found = judge_each(runs, lambda run: judge.judge_placement(run.history))
    if subject.spoil is None:
        return found
    spoiled = replace(subject, prepare=subject.spoil)
    refused = record(spoiled, ranks, cases_of(ranks, (5,)), opening)
    return (*found, *judge_each(refused, lambda run: judge.judge_refusal(run.history)))


def find_changes(subject: Cache, ranks: Ranks) -> tuple[Violation, ...]:
    """Check MEM-02."""
    runs = [run for workers in (0, 2) for run in record_reading(subject, ranks, workers)]
    return judge_each(runs, lambda run: judge.judge_unchanged(run.history))


def find_bad_build(subject: Cache, ranks: Ranks) -> tuple[Violation, ...]:
    """Check MEM-03."""
    runs = record_reading(subject, ranks, workers=0)
    found = judge_each(runs, lambda run: judge.judge_built_once(run.history))
    # Last: a subject may keep the local rank that it finds first, which must be the real one.
    return found or find_bad_build_on_machines(subject, ranks)


def find_device_use(subject: Cache, ranks: Ranks) -> tuple[Violation, ...]:
    """Check MEM-04."""
    runs = record_reading(subject, ranks, workers=2)
    return judge_each(runs, lambda run: judge.judge_device_use(run.history))


def find_unrebuilt(subject: Cache, ranks: Ranks) -> tuple[Violation, ...]:
    """Check MEM-07."""
    (built,) = record_reading(subject, ranks, workers=0)
    return find_bad_rebuild(subject, ranks, built)


CHECKS = (
    Check(MEM_01, (Cache,), find_misplaced),
    Check(MEM_02, (Cache,), find_changes),
    Check(MEM_03, (Cache,), find_bad_build),
    Check(MEM_04, (Cache,), find_device_use),
    Check(MEM_07, (Cache,), find_unrebuilt),
)
