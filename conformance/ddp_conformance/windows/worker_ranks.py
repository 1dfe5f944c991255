"""WIN-06: whether code in DataLoader workers knows which rank it works for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ddp_conformance.framework.case import Case, StartMethod
from ddp_conformance.framework.history import Record
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.framework.recording import cases_of, find_first
from ddp_conformance.framework.registry import Check, Guarantee
from ddp_conformance.framework.verdict import Violation
from ddp_conformance.lockstep.machines import Place, launched_by
from ddp_conformance.sampling.subjects import Loader
from ddp_conformance.windows import judge
from ddp_conformance.windows.data import origins_of
from ddp_conformance.windows.history import WindowReader

WIN_06 = Guarantee(
    "WIN-06",
    "Code in workers MUST know the true rank, whether they are started by fork, spawn or "
    "forkserver.",
    tier=2,
)


def start_methods(world_size: int) -> tuple[StartMethod, ...]:
    """Start methods; those that import torch anew for each worker run with two ranks only."""
    return ("fork", "spawn", "forkserver") if world_size == 2 else ("fork",)


def observe_readers(subject: Loader, case: Case) -> Iterator[Record]:
    """The origins of the samples of one epoch."""
    # RANK is not among the launcher's variables.
    with launched_by("lightning", Place(case.rank, case.world_size)):
        loader = subject.make(case)
        subject.set_epoch(loader, 0)
        for batch in loader:
            origins = zip(subject.indices(batch), origins_of(batch), strict=True)
            for index, (rank, worker) in origins:
                yield WindowReader(case.rank, index, rank, worker)


def find_wrong_readers(subject: Loader, ranks: Ranks) -> tuple[Violation, ...]:
    """WIN-06; stops at the first start method that shows a violation."""
    (case,) = cases_of(ranks, (2 * ranks.world_size,), (1,))
    cases = [replace(case, start_method=method) for method in start_methods(ranks.world_size)]
    return find_first(
        subject, ranks, cases, observe_readers, lambda run: judge.judge_readers(run.history)
    )


CHECKS = (Check(WIN_06, (Loader,), find_wrong_readers, needs=frozenset({"tells_rank"})),)
