"""Decides whether each test of the self-test had the expected verdict; pure.

A verdict alone proves little: a plugin that runs no test and reports the expected verdicts would
pass. So each rank also records that it began a test and that it reached the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Expected: TypeAlias = Mapping[str, tuple[str, str]]
"""What is expected of each test, by its name: the verdict, the categories of its phases joined by
"+", and a text that a failure or skip must contain."""
_LONGEST = 2000
"""Characters of a text that are shown."""


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one test."""

    test: str
    expected: str
    got: str
    seconds: float
    problem: str
    """Why the result is not as expected; empty if it is."""
    text: str = ""
    """What pytest printed about the test, if there is a problem."""


def judge(
    expected: Expected,
    reports: Sequence[Mapping[str, Any]],
    presence: Sequence[Mapping[str, Any]],
    size: int,
) -> list[Row]:
    """A row for each test that was expected or reported.

    Args:
        expected: of all suites of the session.
        reports: as :mod:`pytest_ddp.extensions.doctor.selftest.recorder` writes them.
        presence: as the suites' ``conftest.py`` does.
        size: number of ranks of every test.
    """
    reported: dict[str, list[Mapping[str, Any]]] = {}
    for report in reports:
        reported.setdefault(report["test"], []).append(report)
    rows = []
    for test in dict.fromkeys([*expected, *reported]):
        ours = reported.get(test, [])
        got = "+".join(report["category"] for report in ours if report["category"]) or "no verdict"
        text = "\n".join(report["text"] for report in ours if report["text"])
        verdict, words = expected.get(test, ("no such test", ""))
        problem = _problem(verdict, words, got, text) or _absence(test, verdict, presence, size)
        seconds = sum(report["seconds"] for report in ours)
        rows.append(Row(test, verdict, got, seconds, problem, text[:_LONGEST] if problem else ""))
    return rows


def exit_code(expected: Expected) -> int:
    """pytest's exit code for a session with these verdicts."""
    verdicts = {part for verdict, _ in expected.values() for part in verdict.split("+")}
    return 1 if verdicts & {"failed", "error"} else 0


def _problem(verdict: str, words: str, got: str, text: str) -> str:
    if got != verdict:
        return f"must be {verdict}, is {got}"
    if words not in text:
        return f'is {got}, but not for its own reason: its text lacks "{words}"'
    return ""


def _absence(test: str, verdict: str, presence: Iterable[Mapping[str, Any]], size: int) -> str:
    all_ranks = {(str(rank), str(size)) for rank in range(size)}
    ours = [note for note in presence if note["test"] == test]
    # If a fixture fails, the test function is not called.
    needed = ["began", "ended"] if verdict == "passed" else ["began"]
    for what in needed:
        there = {(note["rank"], note["world_size"]) for note in ours if note["what"] == what}
        if there != all_ranks:
            ranks = ", ".join(sorted(rank or "no rank" for rank, _ in there)) or "none"
            return f"{what} on {ranks}, and had to on all {size} ranks"
    return ""
