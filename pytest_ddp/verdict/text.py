"""The text of a failed phase: the verdict, the ranks, the root cause, then the others.

It only renders the results of :mod:`pytest_ddp.verdict.diagnosis`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from _pytest._code.code import ReprExceptionInfo, ReprFileLocation, ReprTraceback

from pytest_ddp.outcome.outcome import Hang, HangKind, RankLine, ranks_text
from pytest_ddp.protocol.rank_status import phase_text
from pytest_ddp.verdict.codes import pointer
from pytest_ddp.verdict.diagnosis import Diagnosis, Failure, Kind, RankDiagnosis
from pytest_ddp.verdict.lost_ranks import children, entries_of_lost_rank
from pytest_ddp.verdict.rank_failure import (
    RankFailure,
    clean,
    crash_site,
    describe,
    first_line,
    reasons,
)
from pytest_ddp.verdict.representation import (
    WIDTH,
    Entry,
    MarkedLine,
    bare_text,
    brief,
    cleaned,
    entries_of,
    marks_in,
    raw,
    sentences,
    tail_entries,
    wrapped,
)

# ------------------------------------------------------------------
# The table of ranks: a row for each, with its state, phase, collective and place.

_GAP = "  "


def rows_of(ranks: Sequence[RankDiagnosis | RankLine], width: int = WIDTH) -> Iterator[str]:
    """An empty line, then the rows: one line for each rank, if that fits the width.

    Else the places go below, each on a line of its own; and if that is still too wide, the
    collectives too. A column that is empty for all ranks is left out.
    """
    yield ""
    cells = [
        (f"rank {r.rank}", r.state, phase_text(r.phase), r.collective, str(r.place or ""))
        for r in ranks
    ]
    for inline in (5, 4, 3):
        lines = list(_laid_out(cells, inline))
        if all(len(line) <= width for line in lines):
            break
    yield from lines


def _laid_out(cells: Sequence[tuple[str, ...]], inline: int) -> Iterator[str]:
    """The rows with that many cells on their first line, and the others below."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    columns = [number for number in range(inline) if widths[number]]
    # Below the last cell of the first line, to which they belong.
    indent = " " * sum(widths[number] + len(_GAP) for number in columns[:-1])
    for row in cells:
        line = _GAP.join(row[number].ljust(widths[number]) for number in columns).rstrip()
        yield MarkedLine(line, row[1], widths[0] + len(_GAP))
        yield from (indent + cell for cell in row[inline:] if cell)


class FailureText(NamedTuple):
    """The text of a failed phase, as pytest represents it, and its marked lines."""

    longrepr: ReprExceptionInfo
    marks: list[tuple[int, int, int, str]]
    """The result of :func:`marks_in`."""


def represent(failure: Failure, diagnosis: Diagnosis, width: int = WIDTH) -> FailureText:
    """The text of a failed phase; our own lines are wrapped at ``width`` columns."""
    roots = diagnosis.roots
    heading = failure.outcome.heading
    entries: list[Entry] = [raw(f"{heading}\n\n")] if heading else []
    entries.append(_head(failure, diagnosis, width))
    shown: set[Hashable] = set()
    for number, group in enumerate(roots):
        entries += _root(failure, group, number, roots[0][0].at, shown, width)
    entries += tail_entries(_other_ranks(failure, diagnosis), entries[-1], width)
    entries += tail_entries(_notes(failure, diagnosis, width), entries[-1], width)
    entries += tail_entries(_closing(failure, diagnosis), entries[-1], width)
    representation = ReprExceptionInfo(
        reprtraceback=ReprTraceback([cleaned(entry) for entry in entries], None, "long"),
        reprcrash=ReprFileLocation(*diagnosis.place, first_line(heading) or diagnosis.verdict),
    )
    for group in roots:
        _copy_sections(group, representation)
    return FailureText(representation, marks_in(entries))


# ------------------------------------------------------------------ the head


def _head(failure: Failure, diagnosis: Diagnosis, width: int) -> Entry:
    if failure.disagreement is not None and diagnosis.kind is Kind.FINDING:
        return raw(f"{wrapped(failure.disagreement.text, width)}\n")
    return sentences(*_headline(failure, diagnosis, width), width=width)


def _headline(failure: Failure, diagnosis: Diagnosis, width: int) -> list[str]:
    verdict = diagnosis.verdict
    if not diagnosis.roots:
        return [verdict] if failure.disagreement is None else failure.disagreement.text.splitlines()
    first = diagnosis.roots[0][0]
    rows = rows_of(diagnosis.ranks, width) if _has_table(failure, diagnosis) else ()
    if first.stopped:
        return [verdict, *rows, *_remarks(failure)]
    if first.report is None or first.child_crash is not None:
        return [f"{verdict}, {first.where}" if first.where else verdict, *rows]
    label = ranks_text(t.rank.rank for t in diagnosis.roots[0])
    group = diagnosis.roots[0]
    differ = any(t.message != first.message for t in group)
    shown = f" (shown: rank {first.rank.rank})" if differ else ""
    line = f"{label} of {len(failure.outcome.ranks)} failed{shown} in {first.phase}"
    line = f"{line}: {describe(first)}"
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
    return first.report is None or first.child_crash is not None


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
    group: Sequence[RankFailure],
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
        return [
            *entries_of_lost_rank(first, label, oom, width, first_of_all=number == 0),
            *of_child,
        ]
    if first.child_crash is not None:
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
        title = f"{title} {describe(first)}"
    return [sentences("", title, width=width), *(shortened or original), *of_child]


# ------------------------------------------------------------------ the rest


def _other_ranks(failure: Failure, diagnosis: Diagnosis) -> Iterator[str]:
    in_table = _has_table(failure, diagnosis)
    states = {rank.rank: rank.state for rank in diagnosis.ranks} if in_table else {}
    others = [
        (other.rank, other.said)
        for other in failure.others
        if not _is_shown(states.get(other.rank), other.said)
    ]
    by_words: dict[str, list[int]] = {}
    for rank, words in sorted([*_echoes(diagnosis), *others]):
        by_words.setdefault(words, []).append(rank)
    for words, ranks in by_words.items():
        yield f"{ranks_text(ranks)}: {words}"


def _is_shown(state: str | None, words: str) -> bool:
    """Whether a rank's state in the table means the same as these words."""
    return state == words or (state == "ended" and words == "passed")


def _echoes(diagnosis: Diagnosis) -> Iterator[tuple[int, str]]:
    """Ranks that lost their peers, with one sentence for all that did so in the same phase."""
    collectives = {rank.rank: rank.collective for rank in diagnosis.ranks}
    by_words: dict[str, list[RankFailure]] = {}
    for trouble in diagnosis.echoes:
        gone = f"could not go on in {trouble.phase}"
        words = describe(trouble) if trouble.report is None else gone
        by_words.setdefault(words, []).append(trouble)
    for words, group in by_words.items():
        places = _listed(_place(t, collectives.get(t.rank.rank, "")) for t in group)
        # One peer may see the connection closed and another see it reset.
        seen = _listed(why for t in group if t.report is not None for why in reasons(t))
        sentence = f"{words}{places and f', {places}'}{seen and f' ({seen})'}"
        yield from ((trouble.rank.rank, sentence) for trouble in group)


def _place(trouble: RankFailure, collective: str) -> str:
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
    is_deadlock = hang.kind is not HangKind.MISMATCH
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
    text = "" if failure.disagreement is None else failure.disagreement.text
    laid_out = {clean(line.strip()) for line in text.splitlines()}
    for note in diagnosis.notes:
        yield from () if note in laid_out else note.splitlines()


def _closing(failure: Failure, diagnosis: Diagnosis) -> Iterator[str]:
    # Last: near the short summary, and out of the way of readers who know the kind of failure.
    if diagnosis.hint:
        yield diagnosis.hint
    if diagnosis.code:
        yield pointer(diagnosis.code, failure.outcome.docs_url)
    yield from failure.outcome.closing.splitlines()


def _copy_sections(group: Sequence[RankFailure], representation: ReprExceptionInfo) -> None:
    report = group[0].report
    for section in getattr(report and report.longrepr, "sections", ()):
        representation.addsection(*(clean(str(part)) for part in section))
