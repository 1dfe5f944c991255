"""SPEC.md and the registry agree."""

from __future__ import annotations

import re
from pathlib import Path

from ddp_conformance.framework.registry import all_checks
from ddp_conformance.framework.traits import TRAITS
from ddp_conformance.frontend.report import SPEC

TEXT = (Path(__file__).parents[1] / "SPEC.md").read_text(encoding="utf-8")

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


def test_every_statement_has_a_word_of_rfc_2119_that_goes_with_its_level() -> None:
    assert "MUST, MUST NOT, SHOULD and MAY are to be read as in RFC 2119" in " ".join(TEXT.split())
    for check in all_checks():
        word = re.search(r"\b(MUST|SHOULD)\b", check.guarantee.statement)
        assert word is not None, check.id
        assert word[0] == check.guarantee.level, check.id


def test_traits_that_decide_are_named_in_the_entry() -> None:
    bodies = {entry["id"]: entry["body"] for entry in ENTRY.finditer(TEXT)}
    for check in all_checks():
        for trait in check.needs | check.excused:
            assert trait in TRAITS
            assert f"`{trait}`" in bodies[check.id], f"{check.id} does not say {trait}"


def test_the_version_is_that_of_reports() -> None:
    assert f"\nVersion {SPEC}\n" in TEXT
    assert SPEC == "2026.8"
