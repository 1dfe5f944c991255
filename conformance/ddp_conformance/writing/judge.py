"""Judges of the single-writer guarantees: pure functions from what ranks saw to violations."""

from __future__ import annotations

from collections import Counter, defaultdict

from ddp_conformance.framework.history import Failed, History
from ddp_conformance.framework.verdict import Violation, ranks_in_words
from ddp_conformance.writing.history import ReadBack, ReportedPaths, Wrote

NOTHING = Violation(
    "no rank wrote a file into case.directory; one that writes when it is closed needs close="
)

WHICH_TRAIT = "if whichever rank is first writes it and others find it, declare 'first_wins'"


def judge_single_writer(history: History) -> tuple[Violation, ...]:
    """Every file that is no lock is written by one rank, and at least one file is written."""
    writers: defaultdict[str, list[Wrote]] = defaultdict(list)
    for wrote in history:
        if isinstance(wrote, Wrote):
            writers[wrote.path].append(wrote)
    files = {path: wrote for path, wrote in writers.items() if not all(one.lock for one in wrote)}
    if not files:
        return (NOTHING,)
    return tuple(
        Violation(
            f"{path} written by {ranks_in_words([one.rank for one in wrote])}, each in a folder of "
            f"its own; {WHICH_TRAIT}"
        )
        for path, wrote in sorted(files.items())
        if len(wrote) > 1
    )


def judge_first_wins(history: History) -> tuple[Violation, ...]:
    """No rank writes a file that exists again, and some rank writes something."""
    wrote = [record for record in history if isinstance(record, Wrote) and not record.lock]
    if not wrote:
        return (NOTHING,)
    again: defaultdict[str, list[int]] = defaultdict(list)
    for one in wrote:
        if one.there:
            again[one.path].append(one.rank)
    return tuple(
        Violation(f"{path} written by {ranks_in_words(sorted(ranks))}, though it was there")
        for path, ranks in sorted(again.items())
    )


def judge_who_was_first(history: History) -> tuple[Violation, ...]:
    """No rank raises because another one had made a file or folder before it."""
    return tuple(
        Violation(f"rank {failed.rank} raises where another rank was first: {failed.error}")
        for failed in history
        if isinstance(failed, Failed)
    )


def judge_records(history: History, number: int, first: int = 0) -> tuple[Violation, ...]:
    """The files hold the records ``first`` to ``number - 1``, each of them once."""
    return tuple(
        Violation(text)
        for back in history
        if isinstance(back, ReadBack)
        for text in _wrong_records(back, range(first, number))
    )


def _wrong_records(back: ReadBack, right: range) -> list[str]:
    if back.problem:
        return [f"the records cannot be read: {back.problem}"]
    counts = Counter(back.numbers)
    wanted = [*right, *sorted(counts.keys() - set(right))]
    return [
        f"record {record} stands there {counts[record]} times"
        for record in wanted
        if counts[record] != (1 if record in right else 0)
    ]


def judge_paths(history: History) -> tuple[Violation, ...]:
    """All ranks report the same paths, and these exist."""
    reported = [record for record in history if isinstance(record, ReportedPaths)]
    ranks: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for one in reported:
        ranks[one.paths].append(one.rank)
    different = [f"{ranks_in_words(owners)}: {list(paths)}" for paths, owners in ranks.items()]
    missing = {path: one.rank for one in reversed(reported) for path in one.missing}
    return (
        *([Violation(f"the paths differ: {'; '.join(different)}")] if len(ranks) > 1 else []),
        *(
            Violation(f"{path}, reported by rank {rank}, does not exist")
            for path, rank in sorted(missing.items())
        ),
        *([] if any(one.paths for one in reported) else [Violation("no rank reported a path")]),
    )
