"""Runs of a training entry, each made once however many guarantees look at it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from ddp_conformance.framework import nemesis
from ddp_conformance.framework.case import Case
from ddp_conformance.framework.history import Record, Run
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.framework.recent import Recent
from ddp_conformance.framework.recording import cases_of, record
from ddp_conformance.framework.verdict import UndecidedError
from ddp_conformance.launched.endings import came_through, in_order, words_of
from ddp_conformance.launched.order import UNDISTURBED, Named, Scenario, Work
from ddp_conformance.launched.process.live import run_entry
from ddp_conformance.launched.start.launch import Limits, launch
from ddp_conformance.lifecycle.subjects import Training

Key: TypeAlias = tuple[Work, int, Limits, int]

_runs: Recent[Key, tuple[Record, ...]] = Recent()
"""Launch the runs, on rank 0 alone."""


def run_of(subject: Training, ranks: Ranks, scenario: Scenario = UNDISTURBED) -> Run:
    """What all ranks of the entry did in one run; the same on all ranks of the test."""
    work = Work(
        does=Named.of(run_entry),
        entry=Named.of(subject.run),
        argv=tuple(subject.argv),
        index=None if subject.index is None else Named.of(subject.index),
        scenario=scenario,
    )
    limits = Limits(subject.timeout, subject.patience)
    (run,) = record(
        subject, ranks, cases_of(ranks, (1,)), lambda s, case: launched(work, case, limits)
    )
    return run


def launched(work: Work, case: Case, limits: Limits) -> Iterator[Record]:
    """Rank 0 launches the run for all, unless it has done so before."""
    if case.rank != 0:
        return
    key = (work, case.world_size, limits, nemesis.seed())
    history = _runs.get(key)
    if history is None:
        history = _runs[key] = tuple(launch(work, case.world_size, case.directory, limits))
    yield from history


def demand_success(subject: Training, run: Run) -> None:
    """Raise :class:`UndecidedError` for a program that does not end well: LIF-01 shows why."""
    if not came_through(run.history):
        ends = "; ".join(words_of(end) for end in in_order(run.history) if not end.returned)
        raise UndecidedError(f"{subject.name} does not come to its end (see LIF-01): {ends}")
