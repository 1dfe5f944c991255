"""Verdicts as text: guarantees by world size for each subject, and the kill matrix."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


class Word(enum.StrEnum):
    """One cell of the table."""

    PASSED = "passed"
    FAILED = "FAILED"
    EXPECTED = "expected"
    """It fails, and was expected to."""
    SKIPPED = "skipped"
    KILLED = "killed"
    SURVIVED = "SURVIVED"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one check, at one world size."""

    subject: str
    guarantee: str
    world_size: int
    word: Word
    note: str = ""
    """Why it was skipped, or was expected to fail."""


def render(verdicts: Sequence[Verdict], starred: frozenset[str] = frozenset()) -> list[str]:
    """The lines of a table: a block for each subject, a column for each world size.

    Guarantees in ``starred`` are marked. Verdicts may come in any order; the last one
    counts where a test ran more than once.
    """
    cells = {(v.subject, v.guarantee, v.world_size): v for v in verdicts}
    columns = sorted({v.world_size for v in verdicts})
    subjects = list(dict.fromkeys(v.subject for v in verdicts))
    width = max((len(name) for name in subjects), default=0)
    width = max(width, len("world size"), 12)
    lines = [f"{'world size':<{width}}" + "".join(f"{size:>10}" for size in columns)]
    for subject in subjects:
        lines.append(subject)
        guarantees = sorted({g for s, g, _ in cells if s == subject})
        for guarantee in guarantees:
            row = [cells.get((subject, guarantee, size)) for size in columns]
            lines.append(_line(guarantee, guarantee in starred, width, row))
    return lines


def _line(guarantee: str, starred: bool, width: int, row: Sequence[Verdict | None]) -> str:
    label = f"  {guarantee}{' *' if starred else ''}"
    words = "".join(f"{verdict.word if verdict else '':>10}" for verdict in row)
    notes = dict.fromkeys(verdict.note for verdict in row if verdict and verdict.note)
    return f"{label:<{width}}{words}  {'; '.join(notes)}".rstrip()


def summary(verdicts: Sequence[Verdict]) -> str:
    """How many verdicts of each word there are."""
    return ", ".join(_counts(verdicts)) or "nothing was checked"


def _counts(verdicts: Sequence[Verdict]) -> Iterator[str]:
    for word in Word:
        number = sum(verdict.word is word for verdict in verdicts)
        if number:
            yield f"{number} {word.lower()}"
