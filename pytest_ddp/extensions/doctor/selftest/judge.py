"""Whether each test of a battery had the verdict that it must have; pure.

A verdict alone proves little: a plugin that runs nothing and reports what is wished would have them
all. So ranks write down by themselves which of them began a test and came to its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Expected: TypeAlias = Mapping[str, tuple[str, str]]
"""By the name of a test: its verdict, the categories of its phases joined by "+", and a text that a
failure or skip must have in it."""
_LONGEST = 2000
"""Characters of a text that is shown."""


@dataclass(frozen=True, slots=True)
class Row:
    """One test."""

    test: str
    expected: str
    got: str
    seconds: float
    problem: str
    """Why it is not as expected; empty if it is."""
    text: str = ""
    """What pytest showed of it, where there is a problem."""


def judge(
    expected: Expected,
    reports: Sequence[Mapping[str, Any]],
    presence: Sequence[Mapping[str, Any]],
    size: int,
) -> list[Row]:
    """A row for each test that was expected, or was heard of.

    Args:
        expected: of all suites of the session.
        reports: as :mod:`pytest_ddp.extensions.doctor.selftest.recorder` writes them.
        presence: as the suites' ``conftest.py`` does.
        size: number of ranks of every test.
    """
    heard: dict[str, list[Mapping[str, Any]]] = {}
    for report in reports:
        heard.setdefault(report["test"], []).append(report)
    rows = []
    for test in dict.fromkeys([*expected, *heard]):
        ours = heard.get(test, [])
        got = "+".join(report["category"] for report in ours if report["category"]) or "no verdict"
        text = "\n".join(report["text"] for report in ours if report["text"])
        wanted, words = expected.get(test, ("no such test", ""))
        problem = _problem(wanted, words, got, text) or _absence(test, wanted, presence, size)
        seconds = sum(report["seconds"] for report in ours)
        rows.append(Row(test, wanted, got, seconds, problem, text[:_LONGEST] if problem else ""))
    return rows


def exit_code(expected: Expected) -> int:
    """pytest's, of a session with these verdicts."""
    verdicts = {part for wanted, _ in expected.values() for part in wanted.split("+")}
    return 1 if verdicts & {"failed", "error"} else 0


def _problem(wanted: str, words: str, got: str, text: str) -> str:
    if got != wanted:
        return f"must be {wanted}, is {got}"
    if words not in text:
        return f'is {got}, but not for its own reason: its text lacks "{words}"'
    return ""


def _absence(test: str, wanted: str, presence: Iterable[Mapping[str, Any]], size: int) -> str:
    everybody = {(str(rank), str(size)) for rank in range(size)}
    ours = [note for note in presence if note["test"] == test]
    # A fixture that fails keeps the test from its function.
    needed = ["began", "ended"] if wanted == "passed" else ["began"]
    for what in needed:
        there = {(note["rank"], note["world_size"]) for note in ours if note["what"] == what}
        if there != everybody:
            ranks = ", ".join(sorted(rank or "no rank" for rank, _ in there)) or "none"
            return f"{what} on {ranks}, and had to on all {size} ranks"
    return ""
