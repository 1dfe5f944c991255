"""WRT-01, WRT-03 and WRT-04: who writes the files that ranks share, and where.

A writer runs twice: with one folder for all ranks, whose content is read back while an audit
hook hears who writes, and with a folder for each rank, where the files of every rank lie
apart, however they were written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddp_conformance.case import Case
from ddp_conformance.checks import judge_metrics, judge_publishing
from ddp_conformance.checks import judge_writing as judge
from ddp_conformance.history import ReadBack, Record, Run, Told, Wrote
from ddp_conformance.lockstep import Lockstep, in_lockstep
from ddp_conformance.ranks import Ranks
from ddp_conformance.recording import cases_of, describe, judge_each, record
from ddp_conformance.registry import Check, Guarantee
from ddp_conformance.subjects_writing import Writer
from ddp_conformance.verdict import Violation
from ddp_conformance.writes import writes_below
from ddp_conformance.writing_history import Opened

WRT_01 = Guarantee(
    "WRT-01",
    "Each file that ranks share MUST be written by exactly one rank, and each record in it "
    "exactly once.",
    starred=True,
)
WRT_03 = Guarantee(
    "WRT-03",
    "The paths that a writer tells MUST be the same on all ranks and exist when it has written.",
)
WRT_04 = Guarantee(
    "WRT-04",
    "Code that runs on one rank only MUST NOT make a collective of the whole group.",
)

RECORDS = 3
"""Records that a writer is asked for."""


def written_together(subject: Writer, case: Case, ranks: Ranks) -> Iterator[Record]:
    """One folder for all ranks."""
    lockstep = Lockstep(ranks)
    told: list[Told] = []
    try:
        with in_lockstep(lockstep), writes_below(case.directory) as log:
            writer = write_records(subject, case)
            paths = tuple(str(path) for path in subject.paths(writer))
            told.append(Told(case.rank, paths))
    finally:
        # Also on a rank that raised: the others read what was written, and wait for it.
        ranks.gather(None)
    yield from lockstep.calls
    yield from (Opened(case.rank, path) for path in log.paths if written(case.directory / path))
    for one in told:
        missing = tuple(path for path in one.paths if not Path(path).exists())
        yield replace(one, missing=missing)
    if case.rank == 0 and subject.records is not None:
        yield read_back(subject.records, case)


def read_back(records: Any, case: Case) -> ReadBack:
    """What stands in the shared folder."""
    try:
        return ReadBack(0, tuple(int(number) for number in records(case.directory)))
    except Exception as error:
        return ReadBack(0, (), describe(error))


def written_apart(subject: Writer, case: Case, ranks: Ranks) -> Iterator[Record]:
    """A folder for each rank."""
    own = case.directory / f"rank-{case.rank}"
    own.mkdir()
    lockstep = Lockstep(ranks)
    with in_lockstep(lockstep):
        write_records(subject, replace(case, directory=own))
    yield from lockstep.calls
    for path in sorted(own.rglob("*")):
        if written(path):
            yield Wrote(case.rank, str(path.relative_to(own)))


def written(path: Path) -> bool:
    """It is a file with content: an empty one is a lock or a mark, which all ranks may open."""
    return path.is_file() and path.stat().st_size > 0


def write_records(subject: Writer, case: Case) -> Any:
    """A new writer that has written all records."""
    writer = subject.make(case)
    for number in range(RECORDS):
        writer(number)
    return writer


def shared_runs(subject: Writer, ranks: Ranks) -> tuple[Run, ...]:
    """One run with one folder for all ranks."""
    return record(
        subject, ranks, cases_of(ranks, (1,)), lambda s, case: written_together(s, case, ranks)
    )


def find_several_writers(subject: Writer, ranks: Ranks) -> tuple[Violation, ...]:
    """WRT-01."""
    apart = record(
        subject, ranks, cases_of(ranks, (1,)), lambda s, case: written_apart(s, case, ranks)
    )
    together = shared_runs(subject, ranks)
    first = RECORDS - 1 if "replaces" in subject.traits else 0
    return (
        *judge_each(apart, lambda run: judge.judge_single_writer(run.history)),
        *judge_each(together, lambda run: judge.judge_records(run.history, RECORDS, first)),
        *judge_each(together, lambda run: judge_publishing.judge_shared_files(run.history)),
    )


def find_wrong_paths(subject: Writer, ranks: Ranks) -> tuple[Violation, ...]:
    """WRT-03."""
    return judge_each(shared_runs(subject, ranks), lambda run: judge.judge_paths(run.history))


def find_guarded_collectives(subject: Writer, ranks: Ranks) -> tuple[Violation, ...]:
    """WRT-04."""
    return judge_each(
        shared_runs(subject, ranks), lambda run: judge_metrics.judge_same_calls(run.history)
    )


CHECKS = (
    Check(WRT_01, (Writer,), find_several_writers),
    Check(WRT_03, (Writer,), find_wrong_paths, needs=frozenset({"tells_paths"})),
    Check(WRT_04, (Writer,), find_guarded_collectives),
)
