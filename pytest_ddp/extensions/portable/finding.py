"""A finding and its text. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_ddp.outcome.outcome import ranks_text
from pytest_ddp.outcome.stack_dumps import shorten


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a test would hang or go wrong in production.

    Two of the same kind with the same lines are one.
    """

    kind: str
    """Such as ``order between groups``."""
    what: str
    """What the test does, without a full stop; of one line."""
    lines: tuple[tuple[str, str], ...]
    """The places that matter, most often two: words, and ``file:line``."""
    consequence: str
    """Sentences on what happens in production."""
    fix: str
    """A sentence."""
    ranks: tuple[int, ...] = ()
    """Where it was found; filled in by :func:`merged` for findings of single ranks."""
    is_warning: bool = False
    """Whether it never fails a test."""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, sent: Mapping[str, Any]) -> Finding:
        lines = tuple((words, place) for words, place in sent["lines"])
        return cls(**{**sent, "lines": lines, "ranks": tuple(sent["ranks"])})

    def text(self, production: str) -> str:
        """For people; the first line is the verdict. The core wraps lines that are too long."""
        where = f" ({ranks_text(self.ranks)})" if self.ranks else ""
        head = f"not portable to {production}: {self.kind}: {self.what}{where}"
        width = max((len(words) for words, _ in self.lines), default=0)
        places = [f"  {words.ljust(width)}  {shorten(place)}" for words, place in self.lines]
        return "\n".join(
            [
                head,
                *(place.rstrip() for place in places),
                f"  {self.consequence}",
                f"  Fix: {self.fix}",
            ]
        )


def merged(by_rank: Mapping[int, Iterable[Finding]]) -> list[Finding]:
    """The findings of single ranks, each once, with the ranks that have it."""
    found: dict[Finding, list[int]] = {}
    for rank, findings in by_rank.items():
        for finding in findings:
            ranks = found.setdefault(dataclasses.replace(finding, ranks=()), [])
            ranks += [rank] if rank not in ranks else []
    return [dataclasses.replace(one, ranks=tuple(sorted(ranks))) for one, ranks in found.items()]
