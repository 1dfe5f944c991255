"""A finding and its text. Imports no torch."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_ddp.outcome.outcome import Finding


class FindingKind(enum.StrEnum):
    """What is not portable. A string, as it crosses to another process as JSON."""

    GROUP_ORDER = "order between groups"
    LOST_HANDLE = "lost handle"
    UNREAD_RESULT = "unread result"
    TOUCHED_BUFFER = "a buffer touched in flight"
    DIFFERENCE = "a difference between gloo and NCCL"
    RELIANCE = "a collective that does not wait"


OF_KIND = {
    FindingKind.GROUP_ORDER: "DDP-060",
    FindingKind.LOST_HANDLE: "DDP-061",
    FindingKind.TOUCHED_BUFFER: "DDP-062",
    FindingKind.DIFFERENCE: "DDP-063",
    FindingKind.RELIANCE: "DDP-067",
}
"""The code of each kind that fails a test by itself."""


@dataclass(frozen=True, slots=True)
class PortabilityFinding:
    """Why a test would hang or go wrong in production.

    Two of the same kind with the same lines are one.
    """

    kind: FindingKind
    what: str
    """What the test does: one line, without a full stop."""
    lines: tuple[tuple[str, str], ...]
    """The places that matter, most often two: words, and ``file:line``."""
    consequence: str
    """Sentences on what happens in production."""
    fix: str
    """What to write instead: a sentence."""
    ranks: tuple[int, ...] = ()
    """The ranks that have it; filled in by :func:`merged` for findings of single ranks."""
    is_warning: bool = False
    """Whether it never fails a test."""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, sent: Mapping[str, Any]) -> PortabilityFinding:
        lines = tuple((words, place) for words, place in sent["lines"])
        kind, ranks = FindingKind(sent["kind"]), tuple(sent["ranks"])
        return cls(**{**sent, "kind": kind, "lines": lines, "ranks": ranks})

    def as_finding(self, production: str) -> Finding:
        """The finding for the verdict, with the backends of production and its code."""
        what = f"not portable to {production}: {self.kind}: {self.what}"
        code = OF_KIND.get(self.kind, "")
        return Finding(what, code, self.ranks, self.lines, self.consequence, self.fix)


def merged(by_rank: Mapping[int, Iterable[PortabilityFinding]]) -> list[PortabilityFinding]:
    """The findings of single ranks, each once, with the ranks that have it."""
    found: dict[PortabilityFinding, list[int]] = {}
    for rank, findings in by_rank.items():
        for finding in findings:
            ranks = found.setdefault(dataclasses.replace(finding, ranks=()), [])
            ranks += [rank] if rank not in ranks else []
    return [dataclasses.replace(one, ranks=tuple(sorted(ranks))) for one, ranks in found.items()]
