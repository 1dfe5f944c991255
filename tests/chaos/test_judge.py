"""The judge sees what goes wrong: otherwise an hour without findings would prove nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from tests.acceptance.suite import Finished
from tests.chaos.case import FAILED, PASSED, TEARDOWN_ERROR
from tests.chaos.files import Expected
from tests.chaos.judge import ANEW, judge
from tests.chaos.plan import Kill, Plan
from tests.chaos.play import Played

TRUTHS = {"good": PASSED, "bad": FAILED, "late": TEARDOWN_ERROR}
_EMPTY = {"line": 0, "sections": (), "duration": 0.0}
TRUE = {"good": "passed", "bad": "failed", "late": "passed+error"}


def _plan(maxfail: int = 0, kills: tuple[Kill, ...] = ()) -> Plan:
    expected = tuple(Expected(f"a.py::test_{name}", name, TRUTHS[name]) for name in TRUTHS)
    return Plan(0, {}, (), expected, maxfail, kills, spares_ranks=True)


def _records(verdicts: Mapping[str, str], text: str) -> tuple[dict[str, Any], ...]:
    return tuple(
        _record(f"a.py::test_{name}", when, category, text)
        for name, verdict in verdicts.items()
        for when, category in zip(("call", "teardown"), (*verdict.split("+"), ""), strict=False)
    )


def _record(nodeid: str, when: str, category: str, text: str) -> dict[str, Any]:
    fails = category not in ("", "passed")
    found: dict[str, Any] = {"kind": "report", "nodeid": nodeid, "when": when, "category": category}
    found |= {"outcome": "failed" if fails else "passed", "text": text if fails else ""}
    return found | dict.fromkeys(("wasxfail", "message", "path"), "") | _EMPTY


def _played(verdicts: Mapping[str, str], code: int = 1, text: str = "", **changes: Any) -> Played:
    finished = Finished(Path(), code, "", "", _records(verdicts, text), 1.0)
    seen = {"survivors": [], "files": [], "notes": [], "killed": (), "seconds": 1.0, "tail": ""}
    return Played(**{"finished": finished, **seen, **changes})


def _words(plan: Plan, played: Played) -> list[str]:
    return [finding.what for finding in judge(plan, played)]


def test_the_truth_is_no_finding() -> None:
    assert _words(_plan(), _played(TRUE)) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"bad": "passed"}, "false green"),
        ({"late": "passed"}, "false green"),
        ({"bad": "skipped"}, "false green"),
        ({"good": "failed"}, "false red"),
        ({"good": "skipped"}, "other verdict"),
        ({"bad": "error"}, "other verdict"),
    ],
)
def test_another_verdict(change: Mapping[str, str], word: str) -> None:
    assert _words(_plan(), _played({**TRUE, **change})) == [word]


def test_what_is_left_or_lost() -> None:
    assert _words(_plan(), _played({"good": "passed", "bad": "failed"})) == ["not told"]
    assert _words(_plan(), _played(TRUE, code=0)) == ["exit code"]
    assert _words(_plan(), _played(TRUE, survivors=["1"], files=["x"])) == ["survivor", "file left"]
    assert _words(_plan(), _played(TRUE, finished=None)) == ["no end"]
    assert _words(_plan(), _played(TRUE, notes=[["begins", "f", "1"]])) == ["fixture"]


def test_the_limit_of_failures() -> None:
    assert _words(_plan(maxfail=1), _played(TRUE)) == ["ran after the end"]
    assert _words(_plan(maxfail=1), _played({"good": "passed", "bad": "failed"})) == []


def test_a_death_from_outside_must_be_named() -> None:
    killed = (Kill("rank", SIGKILL, "tests", 0, 0.0),)
    changed = {**TRUE, "good": "failed"}
    named, other = "rank 1 died of SIGKILL", "assert 1 == 2"
    assert _words(_plan(), _played(changed, text=named)) == ["false red"]
    assert _words(_plan(kills=killed), _played(changed, text=named, killed=killed)) == []
    assert _words(_plan(kills=killed), _played(changed, text=other, killed=killed)) == ["false red"]


def test_a_signal_strikes_one_test() -> None:
    kill = Kill("host", SIGKILL, "tests", 0, 0.0)
    changed = {**TRUE, "good": "failed", "late": "failed"}
    once, twice = (
        _played(changed, text="the host died of SIGKILL", killed=(kill,) * n) for n in (1, 2)
    )
    assert _words(_plan(), once) == ["other verdict"]
    assert _words(_plan(), twice) == []


def test_no_further_start_after_two_deaths_in_a_row() -> None:
    kill = Kill("host", SIGKILL, "start", 0, 0.0)
    words = {
        "bad": "the host died of SIGKILL",
        "good": "no rank can be started; see a.py::test_bad.",
    }
    words["late"] = words["good"]
    records = [_records({name: "error"}, words[name]) for name in ("good", "bad", "late")]
    played = _played({}, finished=Finished(Path(), 1, "", "", sum(records, ()), 1.0))
    due = ["false red", "other verdict", "other verdict"]
    assert _words(_plan(), replace(played, killed=(kill,))) == due[:1] + due[2:]
    assert _words(_plan(), replace(played, killed=(kill,) * 2)) == []
    other = _records({"good": "error"}, "no rank can be started; see a.py::test_late.")
    played = _played({}, finished=Finished(Path(), 1, "", "", other, 1.0), killed=(kill,) * 2)
    assert _words(_plan(), played) == ["false red", "not told", "not told"]


def test_a_host_that_was_started_anew_is_reported_and_harmless() -> None:
    kill, shown = Kill("host", SIGKILL, "start", 0, 0.0), {"kind": "warning", "message": ANEW}
    plan = replace(_plan(), expected=_plan().expected[:1])
    for deaths, warnings, words in ((1, 1, []), (1, 0, ["exit code"]), (2, 1, ["exit code"])):
        records = (*_records({"good": "passed"}, ""), *(shown,) * warnings)
        finished = Finished(Path(), 0, "", "", records, 1.0)
        played = _played({}, finished=finished, killed=(kill,) * deaths)
        assert _words(plan, played) == words


def test_what_pytest_could_not_report_when_it_was_killed() -> None:
    killed = (Kill("pytest", SIGKILL, "tests", 2, 0.0),)
    shown = {"good": "passed", "bad": "failed"}
    assert _words(_plan(), _played(shown, code=-9, killed=killed)) == []
    assert _words(_plan(), _played(shown, code=0, killed=killed)) == ["exit code"]
    assert _words(_plan(), _played({"good": "failed"}, code=-9, killed=killed)) == ["false red"]
