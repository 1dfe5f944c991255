"""The page is that of the parts as they are declared; the run that makes it judges them anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conformance.ecosystem.frame import page
from conformance.ecosystem.frame.libraries import LIBRARIES, Library

DOCS = Path(__file__).parents[2] / "docs"
CONTENT: dict[str, Any] = json.loads((DOCS / "ecosystem.json").read_text(encoding="utf-8"))
SHOWN = {library["name"]: library["parts"] for library in CONTENT["libraries"]}


def test_page_and_document_agree() -> None:
    assert (DOCS / "ecosystem.md").read_text(encoding="utf-8") == page.render(CONTENT)


def test_all_libraries_are_shown() -> None:
    assert list(SHOWN) == [library.distribution for library in LIBRARIES]


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.module)
def test_parts_are_shown_as_they_are_declared(library: Library) -> None:
    if not library.installed:
        pytest.skip(f"{library.distribution} is not installed; make ecosystem looks at it")
    declared = [(part.subject.name, part.use, set(part.broken)) for part in library.parts]
    shown = [(part["name"], part["use"], _broken(part)) for part in SHOWN[library.distribution]]
    assert shown == declared


def _broken(part: dict[str, Any]) -> set[str]:
    return {name for name, word in part["guarantees"].items() if word == "broken"}


def test_a_verdict_that_nobody_declared_makes_no_page() -> None:
    (part,) = (p for p in LIBRARIES[0].parts if p.subject.name == "torch_ddp")
    verdict = {"subject": "torch_ddp", "guarantee": "MOD-01", "verdict": "unknown", "witness": []}
    with pytest.raises(ValueError, match="torch_ddp MOD-01: unknown"):
        page._part(part, [verdict])
