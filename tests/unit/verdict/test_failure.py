"""The texts of failures: the cause first, everything once, readable in 80 columns."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from _pytest._code.code import ReprEntry
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddp.outcome.outcome import Ending, RankOutcome
from pytest_ddp.protocol.messages import Phase
from tests.unit import handmade as made
from tests.unit.handmade import (
    ASSERTED,
    BLOCKED,
    CLOSED,
    CRASHED,
    RESET,
    SPINNING,
    dead,
    failure,
    place,
    stopped,
    text,
    verdict,
)

SETUP, CALL, TEARDOWN = Phase

# ------------------------------------------------------------------ failed reports


def test_original_traceback_stands_below_the_verdict() -> None:
    report = failure(made.passing(0), made.passing(1, ASSERTED), made.passing(2))
    lines = report.longreprtext.splitlines()
    assert lines[0] == "rank 1 of 3 failed in call: assert 3 == 4"
    assert ">       assert x == 4, 'assert 3 == 4\\n +  where 3 = f()'" in lines
    assert lines.index("E       assert 3 == 4") + 1 == lines.index("E        +  where 3 = f()")
    assert lines[-1] == "ranks 0, 2: passed"
    assert verdict(report) == "rank 1: assert 3 == 4"
    assert place(report)[1] == 3


def test_original_entries_keep_their_kind() -> None:
    """Native text would lose pytest's colours."""
    entries = failure(made.passing(0, ASSERTED)).longrepr.reprtraceback.reprentries  # type: ignore[union-attr]
    assert any(isinstance(entry, ReprEntry) for entry in entries)


def test_like_failures_once() -> None:
    report = failure(*(made.passing(r, ASSERTED) for r in range(3)))
    assert report.longreprtext.startswith("ranks 0-2 of 3 failed in call: assert 3 == 4\n")
    assert report.longreprtext.count("E       assert 3 == 4") == 1
    assert verdict(report) == "ranks 0-2: assert 3 == 4"


def test_addresses_and_ports_do_not_make_failures_unlike() -> None:
    source = "raise ValueError(x)"
    reports = [
        made.failed(source, x=f"<object at 0x7f{r}a> at [127.0.0.1]:500{r}") for r in range(2)
    ]
    report = failure(*(made.passing(r, call) for r, call in enumerate(reports)))
    assert verdict(report).startswith("ranks 0-1: ValueError: <object at 0x7f0a>")


def test_unlike_failures_earliest_first() -> None:
    late = made.shifted(made.passing(0, ASSERTED), CALL, 1.75)
    early = made.passing(1, made.failed("raise ValueError('no sample 17')"))
    report = failure(late, early, made.passing(2))
    shown = report.longreprtext
    assert verdict(report) == "rank 1: ValueError: no sample 17 (rank 0 failed differently)"
    assert shown.startswith("rank 1 of 3 failed in call: ValueError: no sample 17\n")
    assert "rank 0 failed in call, 0.8 s later:\n" in shown
    assert shown.index("E       ValueError") < shown.index("E       assert 3 == 4")


def test_same_line_with_other_values_is_not_shown_again() -> None:
    calls = [made.failed("assert x == 4, f'assert {x} == 4'", x=r) for r in range(3)]
    shown = text(*(made.passing(r, call) for r, call in enumerate(calls)))
    assert shown.count(">       assert x == 4") == 1
    assert "rank 1 failed in call, at the same line:\nE       assert 1 == 4\n" in shown
    assert shown.endswith("rank 2 failed in call, at the same line:\nE       assert 2 == 4")


def test_same_line_keeps_every_line_of_the_message() -> None:
    source = "assert x == 4, f'assert {x} == 4\\nsecond line of {x}'"
    for style in ("long", "line"):
        calls = [made.failed(source, style=style, x=r) for r in range(2)]
        shown = text(*(made.passing(r, call) for r, call in enumerate(calls)))
        assert "at the same line" in shown
        assert "second line of 1" in shown


def test_same_line_at_the_same_moment_is_reported_in_order_of_ranks() -> None:
    calls = [made.failed("assert x == 4, f'assert {x} == 4'", x=r) for r in range(2)]
    first, second = made.passing(0, calls[0]), made.passing(1, calls[1])
    assert verdict(failure(made.shifted(first, CALL, 1.1), second)).startswith("rank 0:")
    assert verdict(failure(made.shifted(first, CALL, 1.5), second)).startswith("rank 1:")


def test_same_line_is_shown_again_where_locals_are() -> None:
    calls = [
        made.failed("assert x == 4, f'assert {x} == 4'", show_locals=True, x=r) for r in range(2)
    ]
    shown = text(*(made.passing(r, call) for r, call in enumerate(calls)))
    assert shown.count(">       assert x == 4") == 2


def test_chain_of_exceptions_is_whole() -> None:
    source = "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('b') from e"
    report = failure(made.passing(0, made.failed(source)))
    shown = report.longreprtext
    assert verdict(report) == "rank 0: ValueError: b"
    parts = ("E           KeyError: 'a'", "direct cause of", "E           ValueError: b")
    assert [shown.index(part) for part in parts] == sorted(shown.index(part) for part in parts)


def test_recursion_keeps_its_remark() -> None:
    recursive = made.failed("def f(): f()\nf()")
    assert "Recursion" in text(made.passing(0, recursive))


def test_sections_of_a_representation_are_kept() -> None:
    call = made.failed("raise ValueError('a')")
    call.longrepr.addsection("From a plugin", "its words")  # type: ignore[union-attr]
    shown = text(made.passing(0, made.through_json(call)))
    assert "- From a plugin -" in shown
    assert "its words" in shown


@pytest.mark.parametrize("style", ["long", "short", "native", "no"])
def test_every_style_of_traceback(style: Any) -> None:
    shown = text(made.passing(0, made.failed("raise ValueError('a')", style=style)))
    assert shown.startswith("rank 0 of 1 failed in call: ValueError: a\n") or style == "no"
    assert "ValueError: a" in shown


# ------------------------------------------------------------------ odd representations


@pytest.mark.parametrize(
    ("longrepr", "said"),
    [
        (None, "failed without a message"),
        ("", "failed without a message"),
        ("\n \n", "failed without a message"),
        ("plain text", "plain text"),
        ("first\nsecond", "first"),
        (("/src/a.py", 3, "a triple"), "a triple"),
        (["a", "b"], "['a', 'b']"),
        (17, "17"),
    ],
)
def test_failure_without_a_traceback(longrepr: Any, said: str) -> None:
    call = made.report(CALL, "failed")
    call.longrepr = longrepr
    report = failure(made.passing(0, call), made.passing(1))
    assert verdict(report) == f"rank 0: {said}"
    assert report.longreprtext.startswith(f"rank 0 of 2 failed in call: {said}\n")
    if longrepr == "first\nsecond":
        assert "\nfirst\nsecond\n" in report.longreprtext


def test_second_failure_without_a_traceback() -> None:
    bare = made.report(CALL, "failed", "plain text")
    shown = text(made.passing(0, ASSERTED), made.passing(1, bare))
    assert shown.endswith("\nrank 1 failed in call: plain text")


def test_representation_that_cannot_be_printed() -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    call = made.report(CALL, "failed")
    call.longrepr = Broken()  # type: ignore[assignment]
    assert verdict(failure(made.passing(0, call))) == (
        "rank 0: <RuntimeError while printing the failure>"
    )


def test_exception_that_cannot_be_printed() -> None:
    source = "class Odd(Exception):\n    def __str__(self): raise RuntimeError\nraise Odd"
    assert "Odd" in verdict(failure(made.passing(0, made.failed(source))))


def test_representation_without_a_place() -> None:
    call = made.failed("raise ValueError('a')")
    _, line = place(failure(made.passing(0, call)))
    call.longrepr.reprcrash = None  # type: ignore[union-attr]
    assert place(failure(made.passing(0, call)))[1] == line
    call.longrepr.reprtraceback.reprentries = []  # type: ignore[union-attr]
    assert place(failure(made.passing(0, call))) == ("tests/test_made.py", 10)


def test_lone_surrogates_are_escaped() -> None:
    """A lone surrogate cannot be sent by xdist nor written to a file."""
    call = made.failed("raise ValueError('\\ud800 ' + x)", x="\ud801", show_locals=True)
    report = failure(made.passing(0, call), notes=("note \ud802",))
    json.dumps(report._to_json(), ensure_ascii=False).encode()
    assert "\\ud801" in report.longreprtext
    assert "note \\ud802" in report.longreprtext


def test_very_long_message_is_cut_in_the_verdict_only() -> None:
    tensor = "x" * 5000
    report = failure(made.passing(0, made.failed("raise ValueError(x)", x=tensor)))
    assert len(verdict(report)) < 400
    assert len(report.longreprtext.splitlines()[0]) == 80
    assert tensor in report.longreprtext


def test_long_line_without_a_traceback_is_whole() -> None:
    line = "words " * 40
    shown = text(made.passing(0, made.report(CALL, "failed", line)))
    assert line.strip() in " ".join(shown.split())


def test_very_long_text_without_a_traceback_is_whole() -> None:
    tensor = "x" * 5000
    assert tensor in text(made.passing(0, made.report(CALL, "failed", tensor)))


# ------------------------------------------------------------------ ranks that never began


def test_not_begun_shows_the_problem() -> None:
    problem = "the process group could not be built:\nTraceback:\n  File x\nRuntimeError: bad"
    ranks = [made.rank(r, ending=Ending.NOT_BEGUN, problem=problem) for r in range(2)]
    report = failure(*ranks, notes=("The rendezvous was tried twice.",))
    assert verdict(report) == (
        "ranks 0-1 could not begin: the process group could not be built: RuntimeError: bad"
    )
    assert "\n  Traceback:\n    File x\n  RuntimeError: bad\n" in report.longreprtext
    assert report.longreprtext.endswith(
        "\nThe rendezvous was tried twice.\n\nDDP-030: python -m pytest_ddp explain DDP-030"
    )


def test_not_begun_without_a_problem() -> None:
    report = failure(made.rank(0, ending=Ending.NOT_BEGUN))
    assert verdict(report) == "rank 0 could not begin: no reason given"


def test_not_begun_for_want_of_the_others_is_secondary() -> None:
    problem = "the process group could not be built:\nRuntimeError: Connection closed by peer"
    waiting = made.rank(0, ending=Ending.NOT_BEGUN, problem=problem, at=1.0)
    gone = made.rank(1, ending=Ending.EXITED, returncode=-11)
    assert verdict(failure(waiting, gone)) == "rank 1 died of SIGSEGV in setup"


# ------------------------------------------------------------------ the whole


def test_notes_stand_at_the_end_and_once() -> None:
    note = "Rank 1 was replaced."
    assert text(made.passing(0, ASSERTED), notes=(note, note)).endswith(f"\n{note}")
    assert text(made.passing(0, ASSERTED), notes=(note, note)).count(note) == 1


def test_advice_on_disagreements() -> None:
    skip = made.passing(0, made.skipped("no GPU"))
    assert "Skip on every rank or on none" in text(skip, made.passing(1))
    ranks = [made.passing(r, counts=made.default_group(r, 0, 1)) for r in range(2)]
    assert "must issue the same collectives" in text(*ranks)


OUTCOMES: dict[str, tuple[RankOutcome, ...]] = {
    "assert": (made.passing(0, CLOSED), made.passing(1, ASSERTED), stopped(2)),
    "alike": tuple(made.passing(r, ASSERTED) for r in range(3)),
    "crash": (made.passing(0, RESET), dead(1, stacks=CRASHED)),
    "killed": (made.passing(0, RESET), dead(1, -signal.SIGKILL)),
    "exit": (made.passing(0), dead(1, 0, stacks=BLOCKED)),
    "hang": (stopped(0), stopped(1, SPINNING)),
    "not begun": (made.rank(0, ending=Ending.NOT_BEGUN, problem="a\nb"), made.passing(1)),
    "disagree": (made.passing(0), made.passing(1, made.skipped("no GPU " * 20))),
    "strict": tuple(made.passing(r, made.xpassed_strict("known")) for r in range(2)),
    "none": (),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_round_trip_over_pytest_s_serialisation(
    name: str, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """xdist sends the merged report once more."""
    monkeypatch.setenv("COLUMNS", "80")
    report = failure(*OUTCOMES[name])
    hook = pytestconfig.hook
    data = hook.pytest_report_to_serializable(config=pytestconfig, report=report)
    data = json.loads(json.dumps(data))
    back = hook.pytest_report_from_serializable(config=pytestconfig, data=data)
    assert back.longreprtext == report.longreprtext
    assert verdict(back) == verdict(report)
    assert place(back) == place(report)
    assert (back.outcome, back.when, back.nodeid) == (report.outcome, report.when, report.nodeid)


@pytest.mark.parametrize("name", [name for name in OUTCOMES if name not in ("assert", "alike")])
def test_own_lines_fit_into_80_columns(name: str) -> None:
    shown = text(*OUTCOMES[name], timeout=5.0 if name == "hang" else None)
    assert max(map(len, shown.splitlines())) <= 80


@given(st.text(), st.text(), st.text())
def test_any_words_of_a_rank_are_survived(problem: str, stacks: str, stderr: str) -> None:
    call = made.report(CALL, "failed")
    call.longrepr = problem
    ranks = (
        made.rank(0, ending=Ending.NOT_BEGUN, problem=problem, stacks=stacks),
        made.rank(1, ending=Ending.EXITED, returncode=-6, stacks=stacks, stderr=stderr),
        made.passing(2, call),
    )
    report = failure(*ranks)
    json.dumps(report._to_json(), ensure_ascii=False).encode()
    assert "\n" not in verdict(report)
