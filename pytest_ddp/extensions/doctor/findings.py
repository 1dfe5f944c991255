"""Findings as records, as text and as JSON."""

from __future__ import annotations

import dataclasses
import enum
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_WIDTH = 100
_INDENT = " " * 20


class Level(enum.StrEnum):
    """Severity of a finding."""

    OK = "ok"
    NOTE = "note"
    """Some tests may fail or be slow."""
    STOP = "STOP"
    """ddp tests cannot run, or hang."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check."""

    topic: str
    level: Level
    text: str
    fix: str = ""
    """What to do; empty if nothing has to be done."""


def ok(topic: str, text: str) -> Finding:
    return Finding(topic, Level.OK, text)


def note(topic: str, text: str, fix: str = "") -> Finding:
    return Finding(topic, Level.NOTE, text, fix)


def stop(topic: str, text: str, fix: str) -> Finding:
    return Finding(topic, Level.STOP, text, fix)


def stops(findings: Iterable[Finding]) -> list[Finding]:
    """Findings that keep ddp tests from running."""
    return [finding for finding in findings if finding.level is Level.STOP]


def as_text(findings: Iterable[Finding]) -> str:
    """A line for each finding, and one more for its fix."""
    lines = []
    for finding in findings:
        head = f"{finding.level:<5} {finding.topic:<13} "
        lines.append(_filled(finding.text, head))
        if finding.fix:
            lines.append(_filled(f"-> {finding.fix}", _INDENT))
    return "\n".join(lines)


def _filled(text: str, head: str) -> str:
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=head,
        subsequent_indent=_INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def as_json(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """A plain record for each, with the fields of :class:`Finding`."""
    return [dataclasses.asdict(finding) for finding in findings]
