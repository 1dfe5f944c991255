"""The text of a failed phase: the verdict, the root cause, then every other rank.

Built of pytest's own representation classes, so that xdist, junitxml and the
terminal treat it like any failure. Nothing here decides whether a test failed:
that is :mod:`pytest_ddp.merge`.
"""

from __future__ import annotations

import dataclasses
import itertools
import signal
import textwrap
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from _pytest._code.code import (
    ReprEntry,
    ReprEntryNative,
    ReprExceptionInfo,
    ReprFileLocation,
    ReprTraceback,
)

from pytest_ddp import diagnose, native
from pytest_ddp.outcome import Ending, RankOutcome, RunOutcome
from pytest_ddp.protocol import Phase
from pytest_ddp.trouble import (
    LONGEST_VERDICT,
    Trouble,
    clean,
    crash_site,
    first_line,
    fold,
    message_of,
    ranks_text,
    tell_apart,
    what_happened,
)

Entry: TypeAlias = ReprEntry | ReprEntryNative

WIDTH = 80
"""Columns of a terminal that nobody has widened."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What the text of one failed phase is made of."""

    outcome: RunOutcome
    troubles: tuple[Trouble, ...]
    disagreement: str = ""
    """The verdict where no single rank failed: unlike results, unequal collective counts."""
    place: tuple[str, int] | None = None
    """Path and line (from 1) of a disagreement."""
    others: tuple[tuple[int, str], ...] = ()
    """What became of the ranks without trouble, by rank."""
    notes: tuple[str, ...] = ()
    """Sentences for the end."""


def represent(failure: Failure) -> ReprExceptionInfo:
    """The ``longrepr`` of a failed phase."""
    roots, echoes = tell_apart(failure.troubles, failure.outcome)
    groups = fold(roots)
    verdict = _verdict(failure, groups)
    entries: list[Entry] = [_text(*_headline(failure, groups, verdict))]
    shown: set[Hashable] = set()
    for number, group in enumerate(groups):
        entries += _root(failure, group, number, groups[0][0].at, shown)
    entries += _tail(_other_ranks(failure, echoes), entries[-1])
    entries += _tail(_notes(failure, groups), entries[-1])
    representation = ReprExceptionInfo(
        reprtraceback=ReprTraceback([_clean_entry(entry) for entry in entries], None, "long"),
        reprcrash=ReprFileLocation(*_place(failure, groups), clean(verdict)),
    )
    for group in groups:
        _copy_sections(group, representation)
    return representation


# ------------------------------------------------------------------ one line each


def _verdict(failure: Failure, groups: Sequence[Sequence[Trouble]]) -> str:
    if not groups:
        return first_line(failure.disagreement) or "no rank ran the test"
    first = groups[0]
    if first[0].stopped:
        return _stopped_verdict(failure, [t for group in groups for t in group])
    label = ranks_text(t.rank.rank for t in first)
    colon = ":" if first[0].report is not None else ""
    text = f"{label}{colon} {what_happened(first[0])}"
    rest = [t.rank.rank for group in groups[1:] for t in group]
    return f"{text} ({ranks_text(rest)} failed differently)" if rest else text


def _stopped_verdict(failure: Failure, stopped: Sequence[Trouble]) -> str:
    if failure.outcome.hang is not None:
        return first_line(failure.outcome.hang.sentence)
    hang = failure.outcome.timeout is not None
    parts = []
    for phase in Phase:
        ranks = [t.rank.rank for t in stopped if t.phase is phase]
        if ranks and hang:
            have = "have" if len(ranks) > 1 else "has"
            parts.append(f"{ranks_text(ranks)} {have} not finished {phase}")
        elif ranks:
            were = "were" if len(ranks) > 1 else "was"
            parts.append(f"{ranks_text(ranks)} {were} stopped in {phase}")
    text = ", ".join(parts)
    return f"timed out after {failure.outcome.timeout:g} s: {text}" if hang else text


def _headline(failure: Failure, groups: Sequence[Sequence[Trouble]], verdict: str) -> list[str]:
    if not groups:
        return failure.disagreement.splitlines() or [verdict]
    first = groups[0][0]
    if first.stopped:
        return [verdict, *_table(failure)]
    if first.report is None:
        return [f"{verdict}, {first.where}" if first.where else verdict]
    label = ranks_text(t.rank.rank for t in groups[0])
    alike = " alike" if len(groups[0]) > 1 else ""
    line = f"{label} of {len(failure.outcome.ranks)} failed{alike} in {first.phase}"
    line = f"{line}: {what_happened(first)}"
    # With a traceback, the message follows in full.
    bare = bare_text(first.report.longrepr) is not None
    return [line if len(line) <= WIDTH or bare else line[: WIDTH - 3] + "..."]


def _table(failure: Failure) -> Iterator[str]:
    """Where every rank of a proven hang stood, a row each; the place below if too wide."""
    if failure.outcome.hang is None:
        return
    table = failure.outcome.hang.table
    stands = [(f"rank {row.rank}", row.state, row.phase, row.collective) for row in table]
    widths = [max(map(len, column)) for column in zip(*stands, strict=True)]
    starts = ["  ".join(map(str.ljust, row, widths)) for row in stands]
    indent = " " * (sum(widths[:3]) + 6)
    fits = all(
        len(start) + 2 + len(row.place) <= WIDTH for start, row in zip(starts, table, strict=True)
    )
    yield ""
    for start, row in zip(starts, table, strict=True):
        yield f"{start}  {row.place}".rstrip() if fits else start.rstrip()
        if row.place and not fits:
            yield indent + row.place


# ------------------------------------------------------------------ root causes


def _root(
    failure: Failure, group: Sequence[Trouble], number: int, begin: float, shown: set[Hashable]
) -> list[Entry]:
    first = group[0]
    label = ranks_text(t.rank.rank for t in group)
    if first.report is None:
        lost = _lost(first, label, failure.outcome.oom, first_of_all=number == 0)
        return [*lost, *_children(first, label, failure.outcome.oom)]
    site = (first.phase, crash_site(first.report))
    again = site in shown and site[1] is not None
    shown.add(site)
    original = entries_of(first.report.longrepr)
    brief = _brief(original) if again else None
    children = _children(first, label, failure.outcome.oom)
    if number == 0:
        return [*original, *children]
    later = f", {first.at - begin:.1f} s later" if first.at - begin >= 0.05 else ""
    title = f"{label} failed in {first.phase}{later}{', at the same line' if brief else ''}:"
    if bare_text(first.report.longrepr) is not None:
        title = f"{title} {what_happened(first)}"
    return [_text("", title), *(brief or original), *children]


def _brief(entries: Sequence[Entry]) -> list[Entry] | None:
    """Only what the failing line said, where its source is on the screen already."""
    last = entries[-1] if entries else None
    if not isinstance(last, ReprEntry) or last.reprlocals is not None:
        return None
    # Only the long styles mark every line of a message, the others its first.
    said = list(itertools.dropwhile(lambda line: not line.startswith("E "), last.lines))
    return [_raw("\n".join(said) + "\n")] if said else None


def _lost(trouble: Trouble, label: str, oom: str, *, first_of_all: bool) -> list[Entry]:
    rank = trouble.rank
    lines = [] if first_of_all or trouble.stopped else [f"{label} {what_happened(trouble)}"]
    lines += _explanations(rank, oom)
    blocks: list[Entry] = [_text("", *lines)] if lines else []
    details = rank.problem.partition("\n")[2]
    if rank.ending is Ending.NOT_BEGUN and details.strip():
        blocks.append(_raw("\n" + textwrap.indent(details.rstrip("\n"), "  ") + "\n"))
    stacks = _stacks(rank, f"{label} in {trouble.phase}")
    return [*blocks, _raw(stacks)] if stacks else blocks


def _explanations(rank: RankOutcome, oom: str) -> Iterator[str]:
    if rank.ending is not Ending.EXITED:
        return
    if rank.returncode == 0:
        yield "exit code 0 is no verdict: the rank left before it reported"
    if rank.returncode == -signal.SIGKILL and not rank.problem:
        before = " (the one below was asked for earlier)" if rank.stacks else ""
        killer = f"the kernel's out-of-memory killer {oom} during the test"
        yield f"SIGKILL leaves no stack{before}; {killer if oom else _SUSPECT}"
    elif not rank.stacks:
        yield "the rank left no stack"
    if rank.returncode == -signal.SIGABRT and "EnforceNotMet" in rank.stderr:
        yield (
            "gloo aborted it (EnforceNotMet, see stderr): the ranks gave one collective tensors "
            "of different shape or dtype, or called different collectives"
        )
    if culprit := native.culprit(rank.native):
        yield f"it was inside {culprit}"
    if rank.returncode == -signal.SIGSEGV and diagnose.is_endless(diagnose.main_stack(rank.stacks)):
        yield "a stack of 100 calls or more: a recursion may have used up the C stack"


_SUSPECT = "the out-of-memory killer sends it too"


def _stacks(rank: RankOutcome, label: str) -> str:
    dumps = [dump for dump in diagnose.parse_stacks(rank.stacks) if dump.main() is not None]
    if not dumps:
        return f"\n{label} gave no stack\n" if rank.ending is Ending.STOPPED else ""
    return "\n".join(["", *_threads(dumps[-1], label)]) + "\n"


def _threads(dump: diagnose.Dump, label: str) -> Iterator[str]:
    """The telling stack, and those of other threads that were in the user's code."""
    main = dump.main()
    assert main is not None
    beside = not main.runs_test and any(stack.runs_test for stack in dump.stacks)
    thread = ", in a thread beside the test" if beside else ""
    yield f"{label}{thread}, most recent call first:"
    yield from _frames(main)
    for stack in dump.stacks:
        if stack is not main and diagnose.user_line(stack.frames) is not None:
            yield f"{label}, {'the test itself' if stack.runs_test else 'another thread'}:"
            yield from _frames(stack)


def _children(trouble: Trouble, label: str, oom: str) -> list[Entry]:
    """How a process died that the rank had forked, such as a DataLoader worker."""
    if _WORKER_KILLED in trouble.message and oom:
        return [_text("", f"the kernel's out-of-memory killer {oom} during the test")]
    dumps = [dump for dump in diagnose.parse_stacks(trouble.rank.children) if dump.fatal]
    if not dumps or (main := dumps[0].main()) is None:
        return []
    what = f"a process that {label} forked died: {dumps[0].title.removeprefix(_FATAL)}"
    return [_text("", f"{what}, most recent call first:"), _raw("\n".join(_frames(main)) + "\n")]


_WORKER_KILLED = "killed by signal: Killed"
"""What a DataLoader says of a worker that got SIGKILL."""
_FATAL = "Fatal Python error: "


def _frames(stack: diagnose.Stack) -> Iterator[str]:
    telling = diagnose.user_line(stack.frames)
    for frame, repeats in itertools.groupby(diagnose.trim(stack.frames)):
        yield f"{'>' if frame == telling else ' '} {frame}"
        further = len(list(repeats)) - 1
        if further:
            yield f"  ... and {further} more calls from there"


# ------------------------------------------------------------------ the rest


def _other_ranks(failure: Failure, echoes: Sequence[Trouble]) -> Iterator[str]:
    words: dict[str, list[int]] = {}
    for rank, said in sorted([*_echoes(echoes), *failure.others]):
        words.setdefault(said, []).append(rank)
    for said, ranks in words.items():
        yield f"{ranks_text(ranks)}: {said}"


def _echoes(troubles: Iterable[Trouble]) -> Iterator[tuple[int, str]]:
    """Ranks with a line each, alike for ranks that broke off at the same place."""
    alike: dict[tuple[str, str], list[Trouble]] = {}
    for trouble in troubles:
        place = f", {trouble.where}" if trouble.where else ""
        if trouble.report is None:
            words = what_happened(trouble)
        else:
            words = f"could not go on in {trouble.phase}"
        alike.setdefault((words, place), []).append(trouble)
    for (words, place), group in alike.items():
        # One peer may see the connection closed and another see it reset.
        seen = dict.fromkeys(what_happened(t) for t in group if t.report is not None)
        why = f" ({'; '.join(seen)})" if seen else ""
        for trouble in group:
            yield trouble.rank.rank, f"{words}{place}{why}"


def _notes(failure: Failure, groups: Sequence[Sequence[Trouble]]) -> Iterator[str]:
    outcome = failure.outcome
    if not (groups and groups[0][0].stopped):
        if outcome.timeout is not None:
            yield f"timed out after {outcome.timeout:g} s"
        if outcome.hang is not None:
            yield from (outcome.hang.sentence, *_table(failure))
    for note in dict.fromkeys((*failure.notes, *outcome.notes)):
        yield from note.splitlines()


def _tail(lines: Iterable[str], before: Entry) -> list[Entry]:
    found = list(lines)
    # pytest draws a line below an entry in the long style; that is space enough.
    space = [] if before.style == "long" else [""]
    return [_text(*space, *found)] if found else []


def _place(failure: Failure, groups: Sequence[Sequence[Trouble]]) -> tuple[str, int]:
    """Path and line for ``--tb=line`` and for editors."""
    if groups:
        first = groups[0][0]
        site = crash_site(first.report) if first.report is not None else None
        if site is not None:
            return site
        if (frame := first.user_frame) is not None:
            return frame.file, frame.line
    if not groups and failure.place is not None:
        return failure.place
    path, line, _ = failure.outcome.location
    return path, (line or 0) + 1


def _copy_sections(group: Sequence[Trouble], representation: ReprExceptionInfo) -> None:
    report = group[0].report
    for section in getattr(report and report.longrepr, "sections", ()):
        representation.addsection(*(clean(str(part)) for part in section))


# ------------------------------------------------------------------ pytest's objects


def bare_text(longrepr: Any) -> str | None:
    """The whole text of a failure that has no traceback; None if it has one."""
    if getattr(longrepr, "reprtraceback", None) is not None:
        return None
    return message_of(longrepr).strip("\n")


def entries_of(longrepr: Any) -> list[Entry]:
    """The original traceback, of the whole chain of exceptions."""
    text = bare_text(longrepr)
    if text is not None:
        # A single line is in the verdict already.
        return [_raw(f"\n{text}\n")] if len(text) > LONGEST_VERDICT or "\n" in text else []
    traceback = longrepr.reprtraceback
    chain = getattr(longrepr, "chain", None) or [(traceback, None, None)]
    entries: list[Entry] = []
    for part, _, description in chain:
        entries += part.reprentries
        if part.extraline:
            entries.append(_raw(f"{part.extraline}\n"))
        if description is not None:
            entries.append(_raw(f"\n{description}\n"))
    return entries


def _text(*lines: str) -> ReprEntryNative:
    """Our own sentences, wrapped."""
    wrapped = (
        textwrap.fill(
            line,
            WIDTH,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in lines
    )
    return _raw("\n".join(wrapped) + "\n")


def _raw(text: str) -> ReprEntryNative:
    return ReprEntryNative(text.splitlines(keepends=True))


def _clean_entry(entry: Entry) -> Entry:
    lines = [clean(line) for line in entry.lines]
    return dataclasses.replace(entry, lines=lines)
