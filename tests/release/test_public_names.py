"""No public name or signature changes unseen."""

from __future__ import annotations

from tests.release.public_names import FILE, lines


def test_public_names_are_those_of_the_file() -> None:
    known = FILE.read_text(encoding="utf-8").splitlines()
    now = list(lines())
    advice = "if that is meant: python -m tests.release.public_names, and an entry in CHANGELOG.md"
    assert sorted(set(known) - set(now)) == [], f"gone or changed (CONTRIBUTING.md); {advice}"
    assert now == known, f"new: {sorted(set(now) - set(known))}; {advice}"
