"""The text of a failed phase: the verdict, the ranks, the root cause, then the others.

It only renders the results of :mod:`pytest_ddp.verdict.diagnosis`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

from _pytest._code.code import ReprExceptionInfo, ReprFileLocation, ReprTraceback

from pytest_ddp.evidence.outcome import Hang
from pytest_ddp.evidence.wording import ranks_text
from pytest_ddp.verdict.diagnosis import Diagnosis, Failure
from pytest_ddp.verdict.entries import (
    WIDTH,
    Entry,
    bare_text,
    brief,
    cleaned,
    entries_of,
    sentences,
    tail,
)
from pytest_ddp.verdict.lost import children, lost
from pytest_ddp.verdict.table import rows_of
from pytest_ddp.verdict.trouble import (
    Trouble,
    clean,
    crash_site,
    first_line,
    reasons,
    what_happened,
)


def represent(failure: Failure, diagnosis: Diagnosis, width: int = WIDTH) -> ReprExceptionInfo:
    """The ``longrepr`` of a failed phase; our own lines are wrapped at ``width`` columns."""
    roots = diagnosis.roots
    entries: list[Entry] = [sentences(*_headline(failure, diagnosis, width), width=width)]
    shown: set[Hashable] = set()
    for number, group in enumerate(roots):
        entries += _root(failure, group, number, roots[0][0].at, shown, width)
    entries += tail(_other_ranks(failure, diagnosis), entries[-1], width)
    entries += tail(_notes(failure, diagnosis, width), entries[-1], width)
    representation = ReprExceptionInfo(
        reprtraceback=ReprTraceback([cleaned(entry) for entry in entries], None, "long"),
        reprcrash=ReprFileLocation(*diagnosis.place, diagnosis.verdict),
    )
    for group in roots:
        _copy_sections(group, representation)
    return representation


# ------------------------------------------------------------------ the head


def _headline(failure: Failure, diagnosis: Diagnosis, width: int) -> list[str]:
    verdict = diagnosis.verdict
    if not diagnosis.roots:
        return failure.disagreement.splitlines() or [verdict]
    first = diagnosis.roots[0][0]
    rows = rows_of(diagnosis.ranks, width) if _has_table(failure, diagnosis) else ()
    if first.stopped:
        return [verdict, *rows, *_remarks(failure)]
    if first.report is None or first.child_death is not None:
        return [f"{verdict}, {first.where}" if first.where else verdict, *rows]
    label = ranks_text(t.rank.rank for t in diagnosis.roots[0])
    group = diagnosis.roots[0]
    how = " alike" if len(group) > 1 else ""
    if any(t.message != first.message for t in group):
        how = f" alike (shown: rank {first.rank.rank})"
    line = f"{label} of {len(failure.outcome.ranks)} failed{how} in {first.phase}"
    line = f"{line}: {what_happened(first)}"
    # With a traceback, the message follows in full.
    bare = bare_text(first.report.longrepr) is not None
    return [line if len(line) <= width or bare else line[: width - 3] + "..."]


def _has_table(failure: Failure, diagnosis: Diagnosis) -> bool:
    """True if the headline has a row for every rank; an exception's traceback needs none."""
    first = diagnosis.roots[0][0] if diagnosis.roots else None
    if first is None or len(diagnosis.ranks) < 2:
        return False
    if first.stopped:
        return failure.outcome.hang is not None or failure.outcome.expiry is not None
    return first.report is None or first.child_death is not None


def _remarks(failure: Failure) -> list[str]:
    """More about the states in the table, below it."""
    expiry = failure.outcome.expiry
    by_words: dict[str, list[int]] = {}
    for rank, words in sorted(expiry.remarks.items()) if expiry is not None else ():
        by_words.setdefault(words, []).append(rank)
    lines = [f"{ranks_text(ranks)}: {words}" for words, ranks in by_words.items()]
    return ["", *lines] if lines else []


# ------------------------------------------------------------------ root causes


def _root(
    failure: Failure,
    group: Sequence[Trouble],
    number: int,
    begin: float,
    shown: set[Hashable],
    width: int,
) -> list[Entry]:
    first = group[0]
    oom = failure.outcome.oom
    label = ranks_text(t.rank.rank for t in group)
    of_child = children(first, label, oom, width)
    if first.report is None:
        return [*lost(first, label, oom, width, first_of_all=number == 0), *of_child]
    if first.child_death is not None:
        # The loader's own traceback is long, and shows only that a worker has died.
        words = f"{label} in {first.phase}: {first_line(first.message)}"
        return [*of_child, sentences("", words, width=width)]
    site = (first.phase, crash_site(first.report))
    again = site in shown and site[1] is not None
    shown.add(site)
    original = entries_of(first.report.longrepr)
    shortened = brief(original) if again else None
    if number == 0:
        return [*original, *of_child]
    later = f", {first.at - begin:.1f} s later" if first.at - begin >= 0.05 else ""
    title = f"{label} failed in {first.phase}{later}{', at the same line' if shortened else ''}:"
    if bare_text(first.report.longrepr) is not None:
        title = f"{title} {what_happened(first)}"
    return [sentences("", title, width=width), *(shortened or original), *of_child]


# ------------------------------------------------------------------ the rest


def _other_ranks(failure: Failure, diagnosis: Diagnosis) -> Iterator[str]:
    in_table = _has_table(failure, diagnosis)
    states = {rank.rank: rank.state for rank in diagnosis.ranks} if in_table else {}
    others = [
        (rank, words) for rank, words in failure.others if not _is_shown(states.get(rank), words)
    ]
    by_words: dict[str, list[int]] = {}
    for rank, words in sorted([*_echoes(diagnosis), *others]):
        by_words.setdefault(words, []).append(rank)
    for words, ranks in by_words.items():
        yield f"{ranks_text(ranks)}: {words}"


def _is_shown(state: str | None, words: str) -> bool:
    """Whether a rank's state in the table says the same as these words."""
    return state == words or (state == "ended" and words == "passed")


def _echoes(diagnosis: Diagnosis) -> Iterator[tuple[int, str]]:
    """Ranks that lost their peers, with one sentence for all that did so in the same phase."""
    collectives = {rank.rank: rank.collective for rank in diagnosis.ranks}
    by_words: dict[str, list[Trouble]] = {}
    for trouble in diagnosis.echoes:
        gone = f"could not go on in {trouble.phase}"
        words = what_happened(trouble) if trouble.report is None else gone
        by_words.setdefault(words, []).append(trouble)
    for words, group in by_words.items():
        places = _listed(_place(t, collectives.get(t.rank.rank, "")) for t in group)
        # One peer may see the connection closed and another see it reset.
        seen = _listed(why for t in group if t.report is not None for why in reasons(t))
        sentence = f"{words}{places and f', {places}'}{seen and f' ({seen})'}"
        yield from ((trouble.rank.rank, sentence) for trouble in group)


def _place(trouble: Trouble, collective: str) -> str:
    waits = f"waiting in {collective}" if trouble.stopped and collective else ""
    return " ".join(filter(None, (waits, trouble.where)))


def _listed(words: Iterable[str]) -> str:
    first, *others = dict.fromkeys(filter(None, words)) or [""]
    shown = [first, *others[: _SHOWN - 1]]
    more = len(others) + 1 - len(shown)
    return "; ".join([*shown, *([f"{more} more"] if more else [])])


_SHOWN = 3
"""Places and reasons of ranks that lost their peers, at most."""


def _have_lost_peers_alone(hang: Hang, diagnosis: Diagnosis) -> bool:
    """Whether all waiting ranks are in one collective, and wait for ranks with a shown failure."""
    failed = {trouble.rank.rank for group in diagnosis.roots for trouble in group}
    waits = {row.collective for row in hang.table if row.state == "waits"}
    is_deadlock = not hang.sentence.startswith("mismatch")
    return is_deadlock and len(waits) == 1 and bool(hang.culprits) and failed >= {*hang.culprits}


def _notes(failure: Failure, diagnosis: Diagnosis, width: int) -> Iterator[str]:
    outcome = failure.outcome
    if not (diagnosis.roots and diagnosis.roots[0][0].stopped):
        if outcome.timeout is not None:
            yield f"timed out after {outcome.timeout:g} s"
        hang = outcome.hang
        if hang is not None and not _have_lost_peers_alone(hang, diagnosis):
            yield hang.sentence
            yield from () if _has_table(failure, diagnosis) else rows_of(diagnosis.ranks, width)
            yield from [""] if diagnosis.notes else []
    for note in diagnosis.notes:
        yield from note.splitlines()


def _copy_sections(group: Sequence[Trouble], representation: ReprExceptionInfo) -> None:
    report = group[0].report
    for section in getattr(report and report.longrepr, "sections", ()):
        representation.addsection(*(clean(str(part)) for part in section))
