"""The recording that all groups share: run a subject in every rank, merge the records."""

from __future__ import annotations

import random
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch

from ddp_conformance.framework import nemesis
from ddp_conformance.framework.case import Case
from ddp_conformance.framework.failures import failures, in_words, release_locals
from ddp_conformance.framework.groups import GroupOfTries
from ddp_conformance.framework.history import Raised, Record, Run
from ddp_conformance.framework.places import is_ours, is_users
from ddp_conformance.framework.ranks import Ranks, shared_directory
from ddp_conformance.framework.recent import Recent
from ddp_conformance.framework.subjects import Subject
from ddp_conformance.framework.verdict import UndecidedError, Violation, listing

Observe: TypeAlias = Callable[[Any, Case], Iterator[Record]]
Judge: TypeAlias = Callable[[Run], Sequence[Violation]]
T = TypeVar("T")


def cases_of(ranks: Ranks, sizes: Sequence[int], workers: Sequence[int] = (0,)) -> list[Case]:
    """The cases of this rank; their folder is set when they are recorded."""
    return [
        Case(size, ranks.rank, ranks.world_size, Path(), num_workers)
        for num_workers in workers
        for size in sizes
    ]


def record(
    subject: Subject,
    ranks: Ranks,
    cases: Sequence[Case],
    observe: Observe,
    *,
    in_one_try: bool = False,
) -> tuple[Run, ...]:
    """Observe the subject in every case, on every rank; returns one run for each case.

    Each case is a try with a process group of its own, if the one before has ended it; but for
    ``in_one_try``, which saves an exchange for each case.

    If code of the subject raises on one rank, the others do not wait: all ranks raise
    :class:`UndecidedError` with that exception.
    """
    group = GroupOfTries(ranks)
    runs: list[Run] = []
    with shared_directory(ranks) as directory:
        cases = [replace(case, directory=directory / str(i)) for i, case in enumerate(cases)]
        problems = [problem for case in cases for problem in _prepared(subject, case)]
        # Also the barrier between preparing on rank 0 and reading on the others.
        _stop_if_raised(subject, "", [r for found in ranks.gather(problems) for r in found])
        for tried in [cases] if in_one_try else [[case] for case in cases]:
            ended = _observed(
                subject, tried, observe, lambda own: ranks.gather((own, group.is_whole()))
            )
            by_rank, whole = zip(*ended, strict=True)
            if not all(whole):
                group.renew()
            for place, case in enumerate(tried):
                history = tuple(record for own in by_rank for record in own[place])
                runs.append(Run(replace(case, rank=0), history))
    for run in runs:
        _stop_if_raised(subject, run.case.label, run.history)
    return tuple(runs)


class PeerRaisedError(Exception):
    """Code of the subject raised on another rank, which makes no further exchange."""


def on_all(ranks: Ranks, act: Callable[[], T]) -> T:
    """Call ``act`` on all ranks before an exchange between them; returns its result.

    Args:
        ranks: none of them returns before ``act`` has returned on all of them.
        act: code of the subject.

    Raises:
        BaseException: as ``act`` raised it on this rank, if it is a failure.
        PeerRaisedError: it raised on another rank; :func:`record` then ends the observation.
    """
    try:
        result = act()
    except failures() as error:
        release_locals(error)
        ranks.gather(True)  # in here, so that the proof of a hang names the exception
        raise
    if any(ranks.gather(False)):
        raise PeerRaisedError
    return result


def skip_random_numbers(number: int) -> None:
    """Advance the three global generators, so that results that depend on them change."""
    for _ in range(number):
        random.random()
        np.random.random()
        torch.rand(1)


def judge_each(runs: Sequence[Run], judge: Judge) -> tuple[Violation, ...]:
    """The violations of all runs, each with its case."""
    return tuple(
        replace(violation, case=run.case.label) for run in runs for violation in judge(run)
    )


_recorded: Recent[tuple[Any, ...], tuple[Subject, tuple[Run, ...]]] = Recent()
"""Runs of this process. Their subjects are kept as well, so that their ids are not reused."""


def record_once(
    subject: Subject, ranks: Ranks, cases: Sequence[Case], observe: Observe, way: str
) -> tuple[Run, ...]:
    """Record as :func:`record` does, for histories that several guarantees use.

    Equal runs are made once; ``way`` names the way of observing, as part of the key.
    """
    return once(subject, ranks, (way, *cases), lambda: record(subject, ranks, cases, observe))


def once(
    subject: Subject, ranks: Ranks, what: tuple[Any, ...], make: Callable[[], tuple[Run, ...]]
) -> tuple[Run, ...]:
    """The runs that ``make`` returns, made only once for ``what`` on these ranks."""
    key = (id(subject), nemesis.seed(), ranks.rank, ranks.world_size, *what)
    # A rank may have been replaced since, so the run is left out only if all ranks have it.
    known = _recorded.get(key)
    all_know = all(ranks.gather(known is not None))
    if known is None or not all_know:
        known = _recorded[key] = subject, make()
    return known[1]


def find_first(
    subject: Subject, ranks: Ranks, cases: Sequence[Case], observe: Observe, judge: Judge
) -> tuple[Violation, ...]:
    """The violations of the first case that has any. List the slowest case last."""
    for case in cases:
        found = judge_each(record(subject, ranks, [case], observe), judge)
        if found:
            return found
    return ()


def _prepared(subject: Subject, case: Case) -> Iterator[Raised]:
    if case.rank != 0:
        return
    case.directory.mkdir()
    try:
        if subject.prepare is not None:
            subject.prepare(case)
    except failures() as error:
        yield Raised(case.rank, describe(error))


def _observed(
    subject: Subject,
    cases: Sequence[Case],
    observe: Observe,
    tell: Callable[[list[list[Record]]], T],
) -> T:
    """Observe the subject in each case, and return what ``tell`` returns for the records."""
    own: list[list[Record]] = []
    for case in cases:
        records: list[Record] = []
        own.append(records)
        nemesis.pause()
        try:
            with warnings.catch_warnings():
                # The check chose the number of workers, not the subject.
                warnings.filterwarnings("ignore", message="This DataLoader will create")
                for seen in observe(subject, case):
                    records.append(seen)
        except PeerRaisedError:
            pass  # the other rank has recorded why
        except failures() as error:
            records.append(Raised(case.rank, describe(error)))
            if case is cases[-1]:
                release_locals(error)
                return tell(own)  # in here, so that the proof of a hang names the exception
    return tell(own)


def _stop_if_raised(subject: Subject, case: str, history: Sequence[Record]) -> None:
    raised = [record for record in history if isinstance(record, Raised)]
    if raised:
        where = f"{case}, " if case else ""
        lines = [f"{where}rank {record.rank}: {record.error}" for record in raised]
        raise UndecidedError(f"{subject.name} raised:\n{listing(lines)}", lines)


def describe(error: BaseException) -> str:
    """An exception on one line, with the innermost line of the user's in its traceback."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_ours(f.filename)]
    # The user's own line helps more than a library's; some tracebacks have none.
    frames = [frame for frame in frames if is_users(frame.filename)] or frames
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{in_words(error)}{place}"
