"""SPEC.md and the registry say the same."""

from __future__ import annotations

import re
from pathlib import Path

from ddp_conformance.registry import all_checks

TEXT = (Path(__file__).parent / "SPEC.md").read_text(encoding="utf-8")

ENTRY = re.compile(
    r"^### (?P<id>[A-Z]{3}-\d\d)(?P<star> ★)? \((?P<level>MUST|SHOULD), tier (?P<tier>\d)\)\n\n"
    r"(?P<statement>[^\n]+)\n(?P<body>.*?)(?=^##|\Z)",
    re.MULTILINE | re.DOTALL,
)

PARTS = ("Rationale", "Check", "Applies to", "Origin", "Known exceptions")


def test_entries_and_checks_are_the_same() -> None:
    entries = {
        (e["id"], e["level"], int(e["tier"]), e["statement"], e["star"] is not None)
        for e in ENTRY.finditer(TEXT)
    }
    guarantees = {check.guarantee for check in all_checks()}
    assert entries == {(g.id, str(g.level), g.tier, g.statement, g.starred) for g in guarantees}


def test_every_heading_is_an_entry() -> None:
    headings = re.findall(r"^### (\S+)", TEXT, re.MULTILINE)
    assert headings == sorted(set(headings))
    assert headings == [entry["id"] for entry in ENTRY.finditer(TEXT)]


def test_every_entry_has_all_parts() -> None:
    for entry in ENTRY.finditer(TEXT):
        for part in PARTS:
            assert f"- **{part}.**" in entry["body"], f"{entry['id']} has no part {part!r}"


def test_the_version_is_there() -> None:
    assert "\nVersion 2026.1\n" in TEXT
