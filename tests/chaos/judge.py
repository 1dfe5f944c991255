"""Compares what a suite has become with its truth."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.acceptance.suite import Finished, Result
from tests.chaos.case import is_failing
from tests.chaos.files import Expected
from tests.chaos.plan import Plan
from tests.chaos.play import Played

_DEATH = re.compile(r"died|killed|SIG[A-Z]+|host|exited|ended|gone|stopped", re.IGNORECASE)
_SEE = re.compile(r"; see (.+)\.$", re.MULTILINE)
OUTSIDE = "error outside of the tests"
ANEW = "while it collected, and was started anew"


@dataclass(frozen=True)
class Finding:
    """One thing that went wrong."""

    what: str
    """The word that totals count by."""
    text: str

    def __str__(self) -> str:
        return f"{self.what}: {self.text}"


def judge(plan: Plan, played: Played) -> list[Finding]:
    """All that went wrong."""
    found = [Finding("survivor", line) for line in played.survivors]
    found += [Finding("file left", path) for path in played.files]
    finished = played.finished
    if finished is None:
        return [*found, Finding("no end", played.tail[-300:])]
    if "INTERNALERROR" in played.tail:
        found.append(Finding("internal error", played.tail[-500:]))
    deaths = [kill for kill in played.killed if kill.target != "pytest"]
    found += _of_reported(plan, finished, len(deaths))
    if len(deaths) < len(played.killed):
        return [*found, *_code_of_kill(played, finished)]
    found += _missing(plan, finished)
    found += _code_of_kill(played, finished) if played.killed else _code(plan, finished)
    if plan.spares_ranks and not played.killed:
        found += _fixtures(played)
    return found


def _of_reported(plan: Plan, finished: Finished, deaths: int) -> Iterator[Finding]:
    gives_up = deaths > 1  # two starts in a row that no rank came out of
    for expected in plan.expected:
        result = finished.results.get(expected.nodeid)
        if result is None or not _is_whole(result) or not expected.truth:
            continue
        if "timed out after" in result.text and not expected.until_the_deadline:
            yield Finding("not proved", _shown(expected, result))
        if verdict_of(result) in expected.truth:
            continue
        if deaths and is_failing([result.verdict]) and _DEATH.search(result.text):
            deaths -= 1  # one signal strikes one test
            continue
        if gives_up and _is_given_up(result, finished):
            continue
        yield Finding(_word(expected, result), _shown(expected, result))


def verdict_of(result: Result) -> str:
    """The test's own: its subtests are reported beside it, and a failed one fails it too."""
    words = result.verdict.split("+")
    return "+".join(dict.fromkeys(word for word in words if word != "subtests passed"))


def _is_given_up(result: Result, finished: Finished) -> bool:
    """Whether a result is an error that refers to the test in which a death was reported."""
    seen = _SEE.search(result.text)
    first = finished.results.get(seen[1]) if seen else None
    return result.verdict == "error" and first is not None and bool(_DEATH.search(first.text))


def _is_whole(result: Result) -> bool:
    return any(report.when == "teardown" for report in result.reports)


def _word(expected: Expected, result: Result) -> str:
    meant, is_red = is_failing(expected.truth), is_failing([result.verdict])
    if meant == is_red:
        return "other verdict"
    return "false red" if is_red else "false green"


def _shown(expected: Expected, result: Result) -> str:
    due = " or ".join(sorted(expected.truth))
    lines = [report.message or report.text[-200:] for report in result.reports if report.text]
    return f"{expected.nodeid} is {result.verdict}, not {due} ({expected.kind}) {lines}"


def _missing(plan: Plan, finished: Finished) -> Iterator[Finding]:
    """Tests that were not reported, and those that were although the session had to end before."""
    failures, over = 0, False
    for expected in plan.expected:
        result = finished.results.get(expected.nodeid)
        if over and result is not None:
            yield Finding("ran after the end", expected.nodeid)
        if not over and result is None and not expected.stops:
            yield Finding("not told", f"{expected.nodeid} ({expected.kind})")
        reports = result.reports if result is not None else ()
        # One that never ran, as its host had died, ends no session.
        ran = result is None or "while it collected" not in result.text
        failures += sum(report.outcome == "failed" for report in reports)
        over = over or (expected.stops and ran) or 0 < plan.maxfail <= failures


def _code(plan: Plan, finished: Finished) -> Iterator[Finding]:
    due = {0}
    if any(is_failing([result.verdict]) for result in finished.results.values()):
        due = {1, 2} if plan.maxfail else {1}
    if any(expected.stops for expected in plan.expected):
        due |= {7}
    if not plan.expected:
        due = {int(pytest.ExitCode.NO_TESTS_COLLECTED)}
    if finished.returncode not in due:
        outside = finished.output.partition(OUTSIDE)[2][:600]
        yield Finding("exit code", f"{finished.returncode}, not {due} {outside}")


def _code_of_kill(played: Played, finished: Finished) -> Iterator[Finding]:
    """No success, but where hosts died in which no test had begun, and each is reported."""
    harmless = sum(ANEW in warning for warning in finished.warnings)
    if finished.returncode == 0 and len(played.killed) > harmless:
        yield Finding("exit code", "0, although somebody was killed")


def _fixtures(played: Played) -> Iterator[Finding]:
    """Fixtures wider than a test end once in each rank in which they began."""
    counts = Counter(tuple(words) for words in played.notes)
    lives = {tuple(words[1:]) for words in played.notes}
    for name, pid in sorted(lives):
        begun, ended = counts["begins", name, pid], counts["ends", name, pid]
        if begun != ended:
            yield Finding("fixture", f"{name} began {begun} times in {pid}, ended {ended} times")
