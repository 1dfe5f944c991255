"""What a judge returns and how a check fails."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

EVIDENCE = "conformance evidence"
"""User property of a test: how its check ended, in a word, and the lines that prove it."""

WITNESSES = 5
"""Most lines of evidence in a failure text."""
_WIDTH = 94
"""Columns of evidence and of a guarantee in a failure text: pytest's margin takes six of 100."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One breach of a guarantee, with the smallest evidence that proves it."""

    what: str
    """What is broken, for example ``index 7 delivered by ranks 0 and 1``."""
    epoch: int | None = None
    case: str = ""
    """The case in words; the judge leaves it empty, the check fills it in."""

    def __str__(self) -> str:
        epoch = "" if self.epoch is None else f"epoch {self.epoch}"
        where = ", ".join(part for part in (self.case, epoch) if part)
        return f"{where}: {self.what}" if where else self.what


class EvidenceError(AssertionError):
    """The base of both errors of a check that does not pass."""

    def __init__(self, text: str, evidence: Sequence[object] = ()) -> None:
        super().__init__(text)
        self.evidence = tuple(map(str, evidence))
        """All the evidence, one line each; the text lists the first few."""


class GuaranteeError(EvidenceError):
    """The subject breaks the guarantee; the text lists the evidence."""

    __module__ = "ddp_conformance"  # where users import it from, and a shorter name in reports


class UndecidedError(EvidenceError):
    """The subject could not be judged, because its own code raised."""

    __module__ = "ddp_conformance"


def listing(witnesses: Sequence[object]) -> str:
    """The witnesses that :func:`shown` selects, indented and wrapped."""
    return "\n".join(line for text in shown(witnesses) for line in _wrapped(text))


def shown(witnesses: Sequence[object]) -> list[str]:
    """The first :data:`WITNESSES`, and how many more there are."""
    more = len(witnesses) - WITNESSES
    return [*map(str, witnesses[:WITNESSES]), *([f"and {more} more"] if more > 0 else [])]


def _wrapped(text: str) -> Iterator[str]:
    """The lines of evidence; where it has several, they are kept."""
    for number, line in enumerate(text.splitlines()):
        yield from textwrap.wrap(
            line,
            _WIDTH,
            initial_indent="    " if number else "  ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )


def broken(
    guarantee: str, statement: str, part: str, ranks: str, violations: Sequence[object], *notes: str
) -> GuaranteeError:
    """The error for violations of a guarantee.

    The first line says what is wrong, since pytest's summary shows no other; the statement, which
    a reader may know, comes last.
    """
    lines = [f"{guarantee} is broken by {part} {ranks}:", listing(violations)]
    lines += [line for note in notes for line in _wrapped(note)]
    lines += textwrap.wrap(f"{guarantee}: {statement}", _WIDTH, subsequent_indent="  ")
    return GuaranteeError("\n".join(lines), violations)


def ranks_in_words(ranks: Sequence[int]) -> str:
    """``rank 1``, ``ranks 0 and 1``, ``ranks 0, 1 and 3``; a rank that occurs twice stays twice."""
    names = [str(rank) for rank in ranks]
    if len(names) == 1:
        return f"rank {names[0]}"
    return f"ranks {', '.join(names[:-1])} and {names[-1]}"
