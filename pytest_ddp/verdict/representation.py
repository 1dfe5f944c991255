"""Builds a failure text from pytest's own representation classes.

So xdist, junitxml and the terminal treat it like any other failure.
"""

from __future__ import annotations

import dataclasses
import itertools
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, TypeAlias

from _pytest._code.code import ReprEntry, ReprEntryNative, ReprExceptionInfo

from pytest_ddp.outcome.outcome import Finding, ranks_text
from pytest_ddp.outcome.stack_dumps import shorten
from pytest_ddp.verdict.rank_failure import LONGEST_VERDICT, clean, message_of

Entry: TypeAlias = ReprEntry | ReprEntryNative

WIDTH = 80
"""Columns without a terminal: in files of results, in the log of a CI job."""


WIDE = "ddp_wide"
"""Attribute of a failed report: the result of :func:`lines_of` for a wider terminal."""
MARKS = "ddp_marks"
"""Attribute of a failed report: the result of :func:`marks_in`, for what the terminal shows."""


class MarkedLine(str):
    """A line of which a part is marked: a rank's state, or the line of a stack that matters."""

    state: str
    """The rank's state in the line; empty for a line that is marked as a whole."""
    at: int
    """The column at which the state begins in the line."""

    def __new__(cls, text: str, state: str = "", at: int = 0) -> Self:
        self = super().__new__(cls, text)
        self.state, self.at = state, at
        return self


def marks_in(entries: Sequence[Entry]) -> list[tuple[int, int, int, str]]:
    """What is marked in a text: the entry, its line, the column and the state."""
    return [
        (number, place, line.at, line.state)
        for number, entry in enumerate(entries)
        for place, line in enumerate(entry.lines)
        if isinstance(line, MarkedLine)
    ]


def lines_of(longrepr: ReprExceptionInfo) -> list[list[str] | None]:
    """The wrapped lines of each entry of this plugin; None for pytest's own entries."""
    entries = longrepr.reprtraceback.reprentries
    return [[*e.lines] if type(e) is ReprEntryNative else None for e in entries]


def bare_text(longrepr: Any) -> str | None:
    """The whole text of a failure without a traceback; None if there is one."""
    if getattr(longrepr, "reprtraceback", None) is not None:
        return None
    return message_of(longrepr).strip("\n")


def entries_of(longrepr: Any) -> list[Entry]:
    """The entries of the original traceback, for the whole chain of exceptions."""
    text = bare_text(longrepr)
    if text is not None:
        # A single line is in the verdict already.
        return [raw(f"\n{text}\n")] if len(text) > LONGEST_VERDICT or "\n" in text else []
    traceback = longrepr.reprtraceback
    chain = getattr(longrepr, "chain", None) or [(traceback, None, None)]
    entries: list[Entry] = []
    for part, _, description in chain:
        entries += part.reprentries
        if part.extraline:
            entries.append(raw(f"{part.extraline}\n"))
        if description is not None:
            entries.append(raw(f"\n{description}\n"))
    return entries


def sentences(*lines: str, width: int = WIDTH) -> ReprEntryNative:
    """An entry of these sentences, wrapped."""
    shown: list[str] = []
    for line in lines:
        first, *others = _wrapped(line, width) or [""]
        shown += [_like(line, first), *others]
    return laid_out(shown)


def laid_out(lines: Iterable[str]) -> ReprEntryNative:
    """An entry of these lines, unchanged, with their marks."""
    return ReprEntryNative([_like(line, f"{line}\n") for line in lines])


def _like(line: str, text: str) -> str:
    """Another text with the mark of a line."""
    return MarkedLine(text, line.state, line.at) if isinstance(line, MarkedLine) else text


def _wrapped(line: str, width: int) -> list[str]:
    return textwrap.wrap(
        line,
        width,
        subsequent_indent=_indent_below(line),
        break_long_words=False,
        break_on_hyphens=False,
    )


def wrapped(text: str, width: int) -> str:
    """A text that is laid out, in which only lines that are too long are broken.

    Their other parts are indented as they are; those of an unindented line, a heading, a little.
    """
    return "\n".join(itertools.chain.from_iterable(_broken(text, width)))


def _broken(text: str, width: int) -> Iterator[list[str]]:
    for line in text.splitlines():
        yield [line] if len(line) <= width else _wrapped(line, width)


def finding_text(finding: Finding) -> str:
    """The text of a finding, laid out; its first line is the verdict."""
    where = f" ({ranks_text(finding.ranks)})" if finding.ranks else ""
    width = max((len(words) for words, _ in finding.lines), default=0)
    places = (f"  {words.ljust(width)}  {shorten(place)}" for words, place in finding.lines)
    return "\n".join(
        [
            f"{finding.what}{where}",
            *(place.rstrip() for place in places),
            *([f"  {finding.consequence}"] if finding.consequence else []),
            *([f"  Fix: {finding.fix}"] if finding.fix else []),
        ]
    )


def _indent_below(line: str) -> str:
    """The indentation of what a line that is too long goes on with."""
    return line[: len(line) - len(line.lstrip())] or "  "


def raw(text: str) -> ReprEntryNative:
    """An entry of this text, unchanged."""
    return ReprEntryNative(text.splitlines(keepends=True))


def cleaned(entry: Entry) -> Entry:
    """The entry with each line as :func:`clean` returns it, and as a plain string."""
    lines = [str(clean(line)) for line in entry.lines]
    return dataclasses.replace(entry, lines=lines)


def brief(entries: Sequence[Entry]) -> list[Entry] | None:
    """Only the message of the failing line, for a source that is shown already; None if unknown."""
    last = entries[-1] if entries else None
    if not isinstance(last, ReprEntry) or last.reprlocals is not None:
        return None
    # The long styles mark every line of a message, the others only its first.
    message = list(itertools.dropwhile(lambda line: not line.startswith("E "), last.lines))
    return [raw("\n".join(message) + "\n")] if message else None


def tail_entries(lines: Iterable[str], before: Entry, width: int) -> list[Entry]:
    """An entry of these lines, separated from the entry before; none without lines."""
    found = list(lines)
    # In the long style pytest draws a line below an entry, which separates enough.
    space = [] if before.style == "long" else [""]
    return [sentences(*space, *found, width=width)] if found else []
