"""pytest's own representation classes, of which a failure text is put together.

So that xdist, junitxml and the terminal treat it like any failure.
"""

from __future__ import annotations

import dataclasses
import itertools
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from _pytest._code.code import ReprEntry, ReprEntryNative, ReprExceptionInfo

from pytest_ddp.verdict.trouble import LONGEST_VERDICT, clean, message_of

Entry: TypeAlias = ReprEntry | ReprEntryNative

WIDTH = 80
"""Columns where there is no terminal: in files of results, in the log of a CI job."""


WIDE = "ddp_wide"
"""Attribute of a failed report: what :func:`lines_of` has of it for a wider terminal."""


def lines_of(longrepr: ReprExceptionInfo) -> list[list[str] | None]:
    """The lines of each entry of ours, which are wrapped; None for pytest's own."""
    entries = longrepr.reprtraceback.reprentries
    return [[*e.lines] if type(e) is ReprEntryNative else None for e in entries]


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
    """Our own sentences, wrapped."""
    wrapped = (
        textwrap.fill(
            line,
            width,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in lines
    )
    return raw("\n".join(wrapped) + "\n")


def raw(text: str) -> ReprEntryNative:
    return ReprEntryNative(text.splitlines(keepends=True))


def cleaned(entry: Entry) -> Entry:
    lines = [clean(line) for line in entry.lines]
    return dataclasses.replace(entry, lines=lines)


def brief(entries: Sequence[Entry]) -> list[Entry] | None:
    """Only what the failing line said, where its source is on the screen already."""
    last = entries[-1] if entries else None
    if not isinstance(last, ReprEntry) or last.reprlocals is not None:
        return None
    # Only the long styles mark every line of a message, the others its first.
    said = list(itertools.dropwhile(lambda line: not line.startswith("E "), last.lines))
    return [raw("\n".join(said) + "\n")] if said else None


def tail(lines: Iterable[str], before: Entry, width: int) -> list[Entry]:
    found = list(lines)
    # pytest draws a line below an entry in the long style; that is space enough.
    space = [] if before.style == "long" else [""]
    return [sentences(*space, *found, width=width)] if found else []
