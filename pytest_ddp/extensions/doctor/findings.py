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
class CheckResult:
    """One result of a check."""

    topic: str
    level: Level
    text: str
    fix: str = ""
    """What to do; empty if nothing has to be done."""


def ok(topic: str, text: str) -> CheckResult:
    return CheckResult(topic, Level.OK, text)


def note(topic: str, text: str, fix: str = "") -> CheckResult:
    return CheckResult(topic, Level.NOTE, text, fix)


def stop(topic: str, text: str, fix: str) -> CheckResult:
    return CheckResult(topic, Level.STOP, text, fix)


def stops(results: Iterable[CheckResult]) -> list[CheckResult]:
    """Findings that keep ddp tests from running."""
    return [finding for finding in results if finding.level is Level.STOP]


def as_text(results: Iterable[CheckResult]) -> str:
    """A line for each finding, and one more for its fix."""
    lines = []
    for finding in results:
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


def as_json(results: Iterable[CheckResult]) -> list[dict[str, Any]]:
    """A plain record for each, with the fields of :class:`CheckResult`."""
    return [dataclasses.asdict(finding) for finding in results]
