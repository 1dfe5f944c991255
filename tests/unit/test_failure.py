"""The texts of failures: the cause first, everything said once, readable in 80 columns."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from _pytest._code.code import ReprEntry
from _pytest.reports import TestReport
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddp.merge import merge
from pytest_ddp.options import Output
from pytest_ddp.outcome import Ending, RankOutcome
from pytest_ddp.protocol import Phase
from pytest_ddp.trouble import first_line, ranks_text
from tests.unit import handmade as made
from tests.unit.handmade import SITE

SETUP, CALL, TEARDOWN = Phase
TEST_FILE = str(Path.cwd() / "tests" / "test_made.py")
ALL_REDUCE = (
    (f"{SITE}/torch/distributed/distributed_c10d.py", 3252, "all_reduce"),
    (f"{SITE}/torch/distributed/c10d_logger.py", 83, "wrapper"),
)
BLOCKED = made.stacks(*ALL_REDUCE, (TEST_FILE, 33, "test_made"))
SPINNING = made.stacks((TEST_FILE, 50, "spin"), (TEST_FILE, 35, "test_made"))
CRASHED = made.stacks(
    (TEST_FILE, 14, "helper"),
    (TEST_FILE, 30, "test_made"),
    title="Fatal Python error: Segmentation fault",
)
ASSERTED = made.failed("x = 3\nassert x == 4, 'assert 3 == 4\\n +  where 3 = f()'")


def gloo(words: str) -> TestReport:
    """What gloo raises, as torch 2.13 words it."""
    return made.failed(
        'raise RuntimeError("[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553]'
        f' {words}. This is typically caused by a remote worker crashing.")'
    )


CLOSED = gloo("Connection closed by peer [127.0.0.1]:5004")
RESET = gloo("Read error [127.0.0.1]:6004: Connection reset by peer")


def failure(*ranks: RankOutcome, **known: Any) -> TestReport:
    """The first failed report of the merged test."""
    reports = merge(made.run(*ranks, **known), Output.FAILED)
    return next(report for report in reports if report.failed)


def message(report: TestReport) -> str:
    said: str = report.longrepr.reprcrash.message  # type: ignore[union-attr]
    return said


def place(report: TestReport) -> tuple[str, int]:
    crash = report.longrepr.reprcrash  # type: ignore[union-attr]
    return crash.path, crash.lineno


def text(*ranks: RankOutcome, **known: Any) -> str:
    return failure(*ranks, **known).longreprtext


def dead(number: int = 1, returncode: int = -signal.SIGSEGV, **known: Any) -> RankOutcome:
    return made.lost_in_call(number, returncode=returncode, **known)


def stopped(number: int, stacks: str = BLOCKED, **known: Any) -> RankOutcome:
    return made.lost_in_call(number, Ending.STOPPED, stacks=stacks, **known)


# ------------------------------------------------------------------ failed reports


def test_original_traceback_stands_below_the_verdict() -> None:
    report = failure(made.passing(0), made.passing(1, ASSERTED), made.passing(2))
    lines = report.longreprtext.splitlines()
    assert lines[0] == "rank 1 of 3 failed in call: assert 3 == 4"
    assert ">       assert x == 4, 'assert 3 == 4\\n +  where 3 = f()'" in lines
    assert lines.index("E       assert 3 == 4") + 1 == lines.index("E        +  where 3 = f()")
    assert lines[-1] == "ranks 0, 2: passed"
    assert message(report) == "rank 1: assert 3 == 4"
    assert place(report)[1] == 3


def test_original_entries_keep_their_kind() -> None:
    """Native text would lose pytest's colours."""
    entries = failure(made.passing(0, ASSERTED)).longrepr.reprtraceback.reprentries  # type: ignore[union-attr]
    assert any(isinstance(entry, ReprEntry) for entry in entries)


def test_like_failures_once() -> None:
    report = failure(*(made.passing(r, ASSERTED) for r in range(3)))
    assert report.longreprtext.startswith("ranks 0-2 of 3 failed alike in call: assert 3 == 4\n")
    assert report.longreprtext.count("E       assert 3 == 4") == 1
    assert message(report) == "ranks 0-2: assert 3 == 4"


def test_addresses_and_ports_do_not_make_failures_unlike() -> None:
    source = "raise ValueError(x)"
    reports = [
        made.failed(source, x=f"<object at 0x7f{r}a> at [127.0.0.1]:500{r}") for r in range(2)
    ]
    report = failure(*(made.passing(r, call) for r, call in enumerate(reports)))
    assert message(report).startswith("ranks 0-1: ValueError: <object at 0x7f0a>")


def test_unlike_failures_earliest_first() -> None:
    late = made.shifted(made.passing(0, ASSERTED), CALL, 1.75)
    early = made.passing(1, made.failed("raise ValueError('no sample 17')"))
    report = failure(late, early, made.passing(2))
    shown = report.longreprtext
    assert message(report) == "rank 1: ValueError: no sample 17 (rank 0 failed differently)"
    assert shown.startswith("rank 1 of 3 failed in call: ValueError: no sample 17\n")
    assert "rank 0 failed in call, 0.8 s later:\n" in shown
    assert shown.index("E       ValueError") < shown.index("E       assert 3 == 4")


def test_same_line_with_other_values_is_not_shown_again() -> None:
    calls = [made.failed("assert x == 4, f'assert {x} == 4'", x=r) for r in range(3)]
    shown = text(*(made.passing(r, call) for r, call in enumerate(calls)))
    assert shown.count(">       assert x == 4") == 1
    assert "rank 1 failed in call, at the same line:\nE       assert 1 == 4\n" in shown
    assert shown.endswith("rank 2 failed in call, at the same line:\nE       assert 2 == 4")


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
    assert message(report) == "rank 0: ValueError: b"
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
    assert message(report) == f"rank 0: {said}"
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
    assert message(failure(made.passing(0, call))) == (
        "rank 0: <RuntimeError while printing the failure>"
    )


def test_exception_that_cannot_be_printed() -> None:
    source = "class Odd(Exception):\n    def __str__(self): raise RuntimeError\nraise Odd"
    assert "Odd" in message(failure(made.passing(0, made.failed(source))))


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
    assert len(message(report)) < 400
    assert len(report.longreprtext.splitlines()[0]) == 80
    assert tensor in report.longreprtext


def test_very_long_text_without_a_traceback_is_whole() -> None:
    tensor = "x" * 5000
    assert tensor in text(made.passing(0, made.report(CALL, "failed", tensor)))


# ------------------------------------------------------------------ what is a consequence


def test_peers_of_a_failed_rank_get_a_line_each() -> None:
    report = failure(
        made.passing(0, CLOSED), made.passing(1, ASSERTED), stopped(2), made.passing(3, CLOSED)
    )
    shown = report.longreprtext
    flat = " ".join(shown.split())
    assert message(report) == "rank 1: assert 3 == 4"
    assert "ranks 0, 3: could not go on in call, at /src/test_made_" in flat
    assert flat.count("Connection closed by peer") == 1
    assert "rank 2: stopped in call, at tests/test_made.py:33 in test_made" in shown
    assert "distributed_c10d" not in shown
    assert "pair.cc" not in shown


def test_peers_at_one_place_get_one_line() -> None:
    """Which of both words a peer sees is chance."""
    calls = [
        made.failed("raise RuntimeError('[/a/pair.cc:5] ' + x)", x=words)
        for words in (
            "Connection closed by peer [127.0.0.1]:1. Typically",
            "Read error [127.0.0.1]:2: Connection reset by peer. Typically",
        )
    ]
    shown = text(made.passing(0, calls[0]), dead(1, stacks=CRASHED), made.passing(2, calls[1]))
    (line,) = [line for line in " ".join(shown.split()).split("rank") if "0, 2:" in line]
    assert line.endswith("(Connection closed by peer; Read error: Connection reset by peer)")


@pytest.mark.parametrize(
    "words",
    [
        "Connection closed by peer [127.0.0.1]:5004",
        "Read error [127.0.0.1]:6004: Connection reset by peer",
        "writev [127.0.0.1]:6004: Broken pipe",
        "Application timeout caused pair closure",
        "Timed out waiting 2000ms for recv operation to complete",
        "ncclRemoteError: A call failed possibly due to a network error",
        "NCCL communicator was aborted on rank 1",
        "failed to recv, got 0 bytes",
        "wait timeout after 300000ms, keys: /default_pg/0//cpu//0/1",
    ],
)
def test_broken_connection_is_secondary(words: str) -> None:
    early = made.passing(0, made.failed("raise RuntimeError(x)", x=words))
    late = made.shifted(made.passing(1, ASSERTED), CALL, 1.75)
    assert message(failure(early, late)) == "rank 1: assert 3 == 4"
    assert message(failure(early, dead(1))) == "rank 1 died of SIGSEGV in call"


def test_refusal_of_the_fixture_is_secondary() -> None:
    source = "from pytest_ddp import DdpError\nraise DdpError('rank 1 died')"
    report = failure(made.passing(0, made.failed(source)), dead(1))
    assert message(report) == "rank 1 died of SIGSEGV in call"
    assert "DdpError: rank 1 died)" in " ".join(report.longreprtext.split())


def test_broken_connection_is_the_cause_where_there_is_no_other() -> None:
    report = failure(made.passing(0, CLOSED), made.passing(1))
    assert message(report) == "rank 0: Connection closed by peer"
    assert "E       RuntimeError: [/__w/" in report.longreprtext


def test_broken_connection_is_the_cause_beside_ranks_that_were_stopped() -> None:
    report = failure(made.passing(0, CLOSED), stopped(1))
    assert message(report) == "rank 0: Connection closed by peer"
    assert "rank 1: stopped in call, at tests/test_made.py:33" in report.longreprtext


@pytest.mark.parametrize(
    "source",
    [
        "assert 'Connection closed by peer' == x, \"assert 'Connection closed by peer' == 'b'\"",
        "raise AssertionError('Connection closed by peer')",
        "import pytest\npytest.fail('Connection closed by peer')",
        "raise ValueError('a\\nConnection closed by peer')",
    ],
)
def test_failure_that_speaks_of_connections_is_not_secondary(source: str) -> None:
    speaking = made.passing(0, made.failed(source, x="b"))
    assert message(failure(speaking, dead(1, at=9.0))).startswith("rank 0: ")


def test_abort_by_a_broken_connection_is_secondary() -> None:
    """gloo's own thread may find the connection closed first, and ends the process."""
    stderr = "terminate called after throwing an instance of 'gloo::IoException'\nConnection reset"
    aborted = dead(0, -signal.SIGABRT, stderr=stderr, at=1.0)
    assert message(failure(aborted, dead(1, -signal.SIGKILL))).startswith("rank 1 died of SIGKILL")


# ------------------------------------------------------------------ dead ranks


def test_signal_with_stack() -> None:
    operator = "frame #7: at::_ops::add_Tensor::call(at::Tensor const&) + 0x1 (0x7f in x.so)\n"
    report = failure(made.passing(0), dead(stacks=CRASHED, stderr=operator))
    assert message(report) == "rank 1 died of SIGSEGV in call"
    assert place(report) == (TEST_FILE, 14)
    assert report.longreprtext == (
        "rank 1 died of SIGSEGV in call, at tests/test_made.py:14 in helper\n"
        "\n"
        "it was inside the operator at::_ops::add_Tensor::call\n"
        "\n"
        "rank 1 in call, most recent call first:\n"
        "> tests/test_made.py:14 in helper\n"
        "  tests/test_made.py:30 in test_made\n"
        "\n"
        "rank 0: passed"
    )


def test_sigkill_says_why_there_is_no_stack() -> None:
    report = failure(made.passing(0), dead(returncode=-signal.SIGKILL))
    assert "SIGKILL leaves no stack; the out-of-memory killer sends it too" in report.longreprtext
    assert place(report) == ("tests/test_made.py", 10)
    asked = text(made.passing(0), dead(returncode=-signal.SIGKILL, stacks=BLOCKED))
    assert "the one below was asked for earlier" in asked


@pytest.mark.parametrize(
    ("returncode", "said"),
    [
        (0, "rank 1 exited with code 0 before it reported call"),
        (3, "rank 1 exited with code 3 before it reported call"),
        (-signal.SIGTERM, "rank 1 died of SIGTERM in call"),
        (-63, "rank 1 died of signal 63 in call"),
        (None, "rank 1 died in call"),
    ],
)
def test_ways_to_die(returncode: int, said: str) -> None:
    report = failure(made.passing(0), dead(returncode=returncode))
    assert message(report) == said
    assert "the rank left no stack" in report.longreprtext
    assert ("exit code 0 is no verdict" in report.longreprtext) == (returncode == 0)


def test_exit_after_the_last_report() -> None:
    gone = made.passing(1, ending=Ending.EXITED, returncode=0)
    assert message(failure(made.passing(0), gone)) == (
        "rank 1 exited with code 0 after it had reported teardown"
    )


def test_mismatch_of_shapes() -> None:
    stderr = (
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
        "  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 600 vs 300."
    )
    shown = text(made.passing(0, CLOSED), dead(returncode=-signal.SIGABRT, stderr=stderr))
    assert "tensors of different shape or dtype" in " ".join(shown.split())
    assert "shape or dtype" not in text(dead(returncode=-signal.SIGABRT))


def test_like_deaths_once() -> None:
    report = failure(*(dead(r, stacks=CRASHED, at=2.0 + r) for r in range(3)))
    assert message(report) == "ranks 0-2 died of SIGSEGV in call"
    assert report.longreprtext.count("most recent call first") == 1


def test_unlike_deaths_are_all_shown() -> None:
    shown = text(*(dead(r, r, stacks=CRASHED, at=3.0 - r) for r in range(3)))
    heads = ["rank 2 exited with code 2", "rank 1 exited with code 1", "rank 0 exited with code 0"]
    assert [shown.index(head) for head in heads] == sorted(shown.index(head) for head in heads)


def test_deep_recursion_is_folded() -> None:
    deep = made.stacks(*[(TEST_FILE, 7, "descend")] * 99, (TEST_FILE, 30, "test_made"))
    shown = text(dead(stacks=deep))
    assert "> tests/test_made.py:7 in descend\n  ... and 98 more calls from there\n" in shown


def test_pytest_exit_is_named() -> None:
    left = made.rank(1, made.report(SETUP), made.report(TEARDOWN), exit_reason="no point")
    assert message(failure(made.passing(0), left)) == (
        "rank 1 ended its test without a call report (pytest.exit: no point)"
    )


# ------------------------------------------------------------------ hangs


def test_timeout_shows_every_stack() -> None:
    ranks = made.passing(0), stopped(1), stopped(2), stopped(3, SPINNING)
    report = failure(*ranks, timeout=5.0)
    assert message(report) == "timed out after 5 s: ranks 1-3 have not finished call"
    assert place(report) == (TEST_FILE, 33)
    assert report.longreprtext == (
        "timed out after 5 s: ranks 1-3 have not finished call\n"
        "\n"
        "ranks 1-2 in call, most recent call first:\n"
        "  torch/distributed/distributed_c10d.py:3252 in all_reduce\n"
        "  torch/distributed/c10d_logger.py:83 in wrapper\n"
        "> tests/test_made.py:33 in test_made\n"
        "\n"
        "rank 3 in call, most recent call first:\n"
        "> tests/test_made.py:50 in spin\n"
        "  tests/test_made.py:35 in test_made\n"
        "\n"
        "rank 0: passed"
    )


def test_timeout_of_one_rank() -> None:
    report = failure(made.passing(0), stopped(1), timeout=0.25)
    assert message(report) == "timed out after 0.25 s: rank 1 has not finished call"


def test_timeout_in_different_phases() -> None:
    stuck = made.rank(1, ending=Ending.STOPPED, stacks=BLOCKED)
    assert message(failure(stopped(0), stuck, timeout=5.0)) == (
        "timed out after 5 s: rank 1 has not finished setup, rank 0 has not finished call"
    )


def test_timeout_without_a_stack() -> None:
    assert "rank 1 in call gave no stack" in text(made.passing(0), stopped(1, ""), timeout=5.0)


def test_timeout_beside_a_failure_is_a_remark() -> None:
    report = failure(made.passing(0, ASSERTED), stopped(1), timeout=5.0)
    assert message(report) == "rank 0: assert 3 == 4"
    assert report.longreprtext.endswith("\ntimed out after 5 s")


def test_timeout_beside_a_broken_connection_is_the_story() -> None:
    report = failure(made.passing(0, CLOSED), stopped(1), timeout=5.0)
    assert message(report) == "timed out after 5 s: rank 1 has not finished call"
    assert "rank 0: could not go on in call" in report.longreprtext


def test_stop_without_a_timeout() -> None:
    ranks = made.passing(0), stopped(1), stopped(2)
    assert message(failure(*ranks)) == "ranks 1-2 were stopped in call"
    assert message(failure(*ranks[:2])) == "rank 1 was stopped in call"


def test_threads_of_the_user_are_shown() -> None:
    both = made.stacks((TEST_FILE, 70, "worker"), header="Thread 0x1", machinery=False) + BLOCKED
    shown = text(made.passing(0), stopped(1, both), timeout=5.0)
    assert "rank 1 in call, another thread:\n> tests/test_made.py:70 in worker\n" in shown
    library = made.stacks(*ALL_REDUCE, header="Thread 0x1", machinery=False) + BLOCKED
    assert "another thread" not in text(made.passing(0), stopped(1, library), timeout=5.0)


def test_stack_of_machinery_alone_is_not_empty() -> None:
    shown = text(made.passing(0), stopped(1, made.stacks()), timeout=5.0)
    assert "_pytest/runner.py:179 in pytest_runtest_call" in shown


# ------------------------------------------------------------------ ranks that never began


def test_not_begun_shows_the_problem() -> None:
    problem = "the process group could not be built:\nTraceback:\n  File x\nRuntimeError: bad"
    ranks = [made.rank(r, ending=Ending.NOT_BEGUN, problem=problem) for r in range(2)]
    report = failure(*ranks, notes=("The rendezvous was tried twice.",))
    assert message(report) == (
        "ranks 0-1 could not begin: the process group could not be built: RuntimeError: bad"
    )
    assert "\n  Traceback:\n    File x\n  RuntimeError: bad\n" in report.longreprtext
    assert report.longreprtext.endswith("\nThe rendezvous was tried twice.")


def test_not_begun_without_a_problem() -> None:
    report = failure(made.rank(0, ending=Ending.NOT_BEGUN))
    assert message(report) == "rank 0 could not begin: no reason given"


def test_not_begun_for_want_of_the_others_is_secondary() -> None:
    problem = "the process group could not be built:\nRuntimeError: Connection closed by peer"
    waiting = made.rank(0, ending=Ending.NOT_BEGUN, problem=problem, at=1.0)
    gone = made.rank(1, ending=Ending.EXITED, returncode=-11)
    assert message(failure(waiting, gone)) == "rank 1 died of SIGSEGV in setup"


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
    assert message(back) == message(report)
    assert place(back) == place(report)
    assert (back.outcome, back.when, back.nodeid) == (report.outcome, report.when, report.nodeid)


@pytest.mark.parametrize("name", [name for name in OUTCOMES if name not in ("assert", "alike")])
def test_own_lines_fit_into_80_columns(name: str) -> None:
    shown = text(*OUTCOMES[name], timeout=5.0 if name == "hang" else None)
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("ranks", "shown"),
    [
        ([1], "rank 1"),
        ([0, 1], "ranks 0-1"),
        ([0, 2], "ranks 0, 2"),
        ([3, 0, 1], "ranks 0-1, 3"),
        ([0, 1, 2, 5, 7, 8], "ranks 0-2, 5, 7-8"),
        ([2, 2], "rank 2"),
    ],
)
def test_ranks_in_words(ranks: list[int], shown: str) -> None:
    assert ranks_text(ranks) == shown


@given(st.sets(st.integers(0, 70), min_size=1))
def test_ranks_in_words_name_every_rank_and_no_other(ranks: set[int]) -> None:
    spans = ranks_text(ranks).partition(" ")[2].split(", ")
    named = set()
    for span in spans:
        first, _, last = span.partition("-")
        named |= set(range(int(first), int(last or first) + 1))
    assert named == ranks


@given(st.text())
def test_first_line_is_one_short_line(words: str) -> None:
    assert len(first_line(words).splitlines()) <= 1
    assert len(first_line(words)) <= 300


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
    assert "\n" not in message(report)
