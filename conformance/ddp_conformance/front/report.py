"""Verdicts as a JSON document, for other programs; ``report.schema.json`` describes it."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ddp_conformance.frame.registry import Guarantee, Level, all_checks
from ddp_conformance.front.table import Verdict, Word

VERSION = 1
"""Of the document's form; raised with every change that a reader could stumble over."""

SPEC = "2026.5"
"""Version of the guarantees' text."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What one check found out about one subject at one world size."""

    subject: str
    kind: str
    guarantee: str
    world_size: int
    word: Word
    reason: str = ""
    """Why it was skipped, was expected to fail or could not be decided; where it passed, what was
    not looked at."""
    witness: tuple[str, ...] = ()
    """The smallest evidence of a violation, one line each."""
    seconds: float = 0.0

    @property
    def is_fault(self) -> bool:
        """A guarantee that MUST hold is broken, or nobody can say whether it is."""
        binding = guarantee_of(self.guarantee).level is Level.MUST
        return binding and self.word in (Word.FAILED, Word.UNKNOWN)

    def cell(self) -> Verdict:
        """The same for the table."""
        row = label(self.guarantee)
        return Verdict(self.subject, row, self.world_size, self.word, self.reason, self.seconds)


def guarantee_of(guarantee_id: str) -> Guarantee:
    """The guarantee with this id."""
    return next(check.guarantee for check in all_checks() if check.id == guarantee_id)


def label(guarantee_id: str) -> str:
    """The id, with a star where the guarantee has one."""
    return f"{guarantee_id} *" if guarantee_of(guarantee_id).starred else guarantee_id


def document(judged: Sequence[Judged], nemesis_seed: int, backend: str) -> dict[str, Any]:
    """All verdicts with what they depend on, as plain lists and mappings."""
    return {
        "format": "ddp-conformance-report",
        "version": VERSION,
        "spec": SPEC,
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "backend": backend,
        "nemesis_seed": nemesis_seed,
        "conforms": not any(one.is_fault for one in judged),
        "guarantees": [_guarantee(g, judged) for g in sorted({one.guarantee for one in judged})],
        "verdicts": [_verdict(one) for one in judged],
    }


def _guarantee(guarantee_id: str, judged: Sequence[Judged]) -> dict[str, Any]:
    guarantee = guarantee_of(guarantee_id)
    own = [one for one in judged if one.guarantee == guarantee_id]
    return {
        "id": guarantee.id,
        "statement": guarantee.statement,
        "level": str(guarantee.level),
        "starred": guarantee.starred,
        "seconds": round(sum(one.seconds for one in own), 3),
        "verdicts": {w.lower(): n for w in Word if (n := sum(one.word is w for one in own))},
    }


def _verdict(one: Judged) -> dict[str, Any]:
    return {
        "subject": one.subject,
        "kind": one.kind,
        "guarantee": one.guarantee,
        "world_size": one.world_size,
        "verdict": one.word.lower(),
        "reason": one.reason,
        "witness": list(one.witness),
        "seconds": round(one.seconds, 3),
    }


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a document; raises ``OSError``."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
