"""Verdicts as a JSON document, for other programs; ``report.schema.json`` describes it."""

from __future__ import annotations

import enum
import json
import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ddp_conformance.framework.registry import Guarantee, Level, all_checks
from ddp_conformance.frontend.table import Verdict, Word

VERSION = 2
"""Version of the document's format; raised with every incompatible change."""

SPEC = "2026.8"
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
    """Why it does not apply, was skipped, was expected to fail or could not be decided; for a check
    that passed, what it did not examine."""
    witness: tuple[str, ...] = ()
    """The smallest evidence of a violation, one line each."""
    seconds: float = 0.0
    system: str = ""
    """The system that the subject belongs to, of several in one run."""

    @property
    def is_fault(self) -> bool:
        """A guarantee that MUST hold is broken or undecided."""
        binding = guarantee_of(self.guarantee).level is Level.MUST
        return binding and self.word in (Word.FAILED, Word.UNKNOWN)

    def cell(self) -> Verdict:
        """The verdict for the table."""
        row = label(self.guarantee)
        return Verdict(self.subject, row, self.world_size, self.word, self.reason, self.seconds)


@dataclass(frozen=True, slots=True)
class Kill:
    """The verdict on a mutant at one world size: killed, survived or skipped."""

    mutant: str
    defect: str
    guarantee: str
    """Id of the guarantee that must kill it."""
    world_size: int
    word: Word
    seconds: float = 0.0


class Fate(enum.StrEnum):
    """The verdict on a guarantee for a part, over all world sizes."""

    KEPT = "kept"
    EXPECTED = "broken as expected"
    BROKEN = "broken or undecided"


def fate_of(words: Collection[Word]) -> Fate | None:
    """The fate of a guarantee, from the verdicts of all world sizes; None if the guarantee was not
    checked.
    """
    if Word.FAILED in words or Word.UNKNOWN in words:
        return Fate.BROKEN
    if Word.EXPECTED in words:
        return Fate.EXPECTED
    return Fate.KEPT if Word.PASSED in words else None


def guarantee_of(guarantee_id: str) -> Guarantee:
    """The guarantee with this id."""
    return next(check.guarantee for check in all_checks() if check.id == guarantee_id)


def label(guarantee_id: str) -> str:
    """The id, with a star where the guarantee has one."""
    return f"{guarantee_id} *" if guarantee_of(guarantee_id).starred else guarantee_id


def document(
    judged: Sequence[Judged],
    nemesis_seed: int,
    backend: str,
    kills: Sequence[Kill] = (),
    warnings: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """All verdicts with what they depend on, as plain lists and mappings.

    ``warnings`` are those that the terminal did not show, with how often each one came.
    """
    ids = sorted({one.guarantee for one in judged} | {one.guarantee for one in kills})
    return {
        "format": "ddp-conformance-report",
        "version": VERSION,
        "spec": SPEC,
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "backend": backend,
        "nemesis_seed": nemesis_seed,
        "conforms": not any(one.is_fault for one in judged),
        "guarantees": [_guarantee(guarantee_id, judged) for guarantee_id in ids],
        "verdicts": [_verdict(one) for one in judged],
        "mutants": [_kill(one) for one in kills],
        "warnings": [{"text": text, "count": n} for text, n in (warnings or {}).items()],
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
        "system": one.system,
        "kind": one.kind,
        "guarantee": one.guarantee,
        "world_size": one.world_size,
        "verdict": one.word.lower(),
        "reason": one.reason,
        "witness": list(one.witness),
        "seconds": round(one.seconds, 3),
    }


def _kill(one: Kill) -> dict[str, Any]:
    return {
        "mutant": one.mutant,
        "defect": one.defect,
        "guarantee": one.guarantee,
        "world_size": one.world_size,
        "verdict": one.word.lower(),
        "seconds": round(one.seconds, 3),
    }


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a document; raises ``OSError``."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
