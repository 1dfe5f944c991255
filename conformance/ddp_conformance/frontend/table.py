"""Verdicts as text: one row for each guarantee or mutant, one column for each world size."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


class Word(enum.StrEnum):
    """One cell of the table."""

    PASSED = "passed"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"
    """The guarantee could not be decided: the subject raised, crashed or did not end."""
    EXPECTED = "expected"
    """The part fails, and was expected to."""
    NOT_BOUND = "not bound"
    """The guarantee does not apply to the subject, because of a trait."""
    SKIPPED = "skipped"
    KILLED = "killed"
    SURVIVED = "SURVIVED"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one check, at one world size: a cell of the table."""

    block: str
    """Rows of one block stand together under this heading."""
    row: str
    world_size: int
    word: Word
    note: str = ""
    """Why it does not apply, was skipped, was expected to fail or could not be decided."""
    seconds: float = 0.0


def render(verdicts: Sequence[Verdict]) -> list[str]:
    """The lines of a table with a column for each world size, and the time of each row.

    Verdicts may come in any order, as under pytest-xdist; the last one counts where a
    test ran more than once.
    """
    cells = {(v.block, v.row, v.world_size): v for v in verdicts}
    rows = sorted({(v.block, v.row) for v in verdicts})
    columns = sorted({v.world_size for v in verdicts})
    width = max((len(row) for _, row in rows), default=0) + 2
    width = max(width, len("world size"))
    sizes = "".join(f"{size:>10}" for size in columns)
    lines = [f"{'world size':<{width}}{sizes}   seconds"]
    for block in dict.fromkeys(block for block, _ in rows):
        lines.append(block)
        for row in [row for owner, row in rows if owner == block]:
            lines.append(_line(row, width, [cells.get((block, row, size)) for size in columns]))
    return lines


def _line(row: str, width: int, cells: Sequence[Verdict | None]) -> str:
    words = "".join(f"{verdict.word if verdict else '':>10}" for verdict in cells)
    verdicts = [verdict for verdict in cells if verdict is not None]
    seconds = sum(verdict.seconds for verdict in verdicts)
    notes = dict.fromkeys(verdict.note for verdict in verdicts if verdict.note)
    return f"  {row:<{width - 2}}{words}{seconds:>10.1f}  {'; '.join(notes)}".rstrip()


def summary(verdicts: Sequence[Verdict]) -> str:
    """How many verdicts of each word there are, and the time of all."""
    if not verdicts:
        return "nothing was checked"
    seconds = sum(verdict.seconds for verdict in verdicts)
    return f"{', '.join(_counts(verdicts))} in {seconds:.1f} s"


def _counts(verdicts: Sequence[Verdict]) -> Iterator[str]:
    for word in Word:
        number = sum(verdict.word is word for verdict in verdicts)
        if number:
            yield f"{number} {word.lower()}"
