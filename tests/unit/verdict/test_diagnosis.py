"""Kinds of ending, rows of ranks, and what programs get of them."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddp.outcome.outcome import Ending, Hang, HangKind, RankLine, RankOutcome, RootCause
from pytest_ddp.protocol.messages import Phase
from pytest_ddp.protocol.rank_status import GroupCount
from pytest_ddp.settings.options import Output
from pytest_ddp.verdict import diagnosis_files
from pytest_ddp.verdict.diagnosis import Diagnosis, Kind, RankDiagnosis
from pytest_ddp.verdict.merge import judge
from pytest_ddp.verdict.representation import sentences
from pytest_ddp.verdict.text import rows_of
from tests.unit import handmade as made
from tests.unit.handmade import ASSERTED, CLOSED, CRASHED, dead, stopped
from tests.unit.standings import code_line

HANG = Hang(
    HangKind.FOR_ENDED,
    what="rank 0 waits in all_reduce #7 of the default group, rank 1 has ended it",
    culprits=(1,),
    table=(
        RankLine(
            0, "waits", ("call",), "all_reduce #7", code_line("tests/test_made.py:33 in f"), "0", 7
        ),
        RankLine(1, "ended", (), "", None),
    ),
)
NO_MEMORY = made.failed("raise MemoryError")


def diagnosis(*ranks: RankOutcome, **known: Any) -> Diagnosis:
    return judge(made.run(*ranks, **known), Output.FAILED).diagnoses[0]


def counts(number: int) -> tuple[GroupCount, ...]:
    return (GroupCount("0", (0, 1), number),)


@pytest.mark.parametrize(
    ("kind", "ranks", "known"),
    [
        (Kind.FAILURE, (made.passing(0), made.passing(1, ASSERTED)), {}),
        (Kind.OUT_OF_MEMORY, (made.passing(0), made.passing(1, NO_MEMORY)), {}),
        (Kind.CRASH, (made.passing(0), dead(stacks=CRASHED)), {}),
        (Kind.CRASH, (made.passing(0), dead(returncode=-signal.SIGKILL)), {}),
        (
            Kind.OUT_OF_MEMORY,
            (made.passing(0), dead(returncode=-signal.SIGKILL)),
            {"oom": "killed a process on this machine"},
        ),
        (Kind.EXIT, (made.passing(0), dead(returncode=0)), {}),
        (Kind.DEADLOCK, (stopped(0), made.passing(1)), {"hang": HANG}),
        (
            Kind.MISMATCH,
            (stopped(0), stopped(1)),
            {"hang": replace(HANG, kind=HangKind.MISMATCH)},
        ),
        (Kind.TIMEOUT, (stopped(0), made.passing(1)), {"timeout": 5.0}),
        (Kind.STOPPED, (stopped(0), made.passing(1)), {}),
        (
            Kind.NOT_BEGUN,
            (made.passing(0), made.rank(1, ending=Ending.NOT_BEGUN, problem="no group")),
            {},
        ),
        (
            Kind.COLLECTIVES,
            (made.passing(0, counts=counts(1)), made.passing(1, counts=counts(2))),
            {},
        ),
        (Kind.DISAGREEMENT, (made.passing(0), made.passing(1, made.skipped("no"))), {}),
    ],
)
def test_kinds(kind: Kind, ranks: tuple[RankOutcome, ...], known: dict[str, Any]) -> None:
    assert diagnosis(*ranks, **known).kind is kind


def test_root_cause_of_a_hang_is_that_of_its_proof() -> None:
    known = replace(HANG, root_cause=RootCause((1,)))
    found = diagnosis(stopped(0), made.passing(1), hang=known)
    assert found.root_cause.ranks == (1,)
    found = diagnosis(stopped(0), made.passing(1), hang=HANG)
    assert found.root_cause == HANG.root_cause
    assert found.verdict == HANG.sentence
    waits, ended = found.ranks
    assert (waits.state, waits.collective, waits.group, waits.number) == (
        *("waits", "all_reduce #7", "0"),
        7,
    )
    assert ended.state == "ended"


def test_root_cause_of_a_crash_is_who_died_first() -> None:
    found = diagnosis(made.passing(0, CLOSED), dead(stacks=CRASHED))
    assert found.root_cause == RootCause((1,))
    broken, died = found.ranks
    assert broken.state == "failed"
    assert (died.state, died.signal, died.exit_code) == ("died", "SIGSEGV", None)
    assert died.place == code_line("tests/test_made.py:14 in helper")
    assert [frame.line for frame in died.stack] == [14, 30]


def test_rank_that_gloo_aborted_need_not_be_the_root_cause() -> None:
    why = "EnforceNotMet [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes"
    aborted = made.rank(1, ending=Ending.EXITED, returncode=-6, stderr=why)
    found = diagnosis(made.passing(0), aborted).root_cause
    assert (found.ranks, bool(found.unknown)) == ((), True)
    closed = replace(aborted, stderr=f"{why}\n[enforce fail at loop.cc:44] Bad file descriptor")
    assert diagnosis(made.passing(0), closed).root_cause == RootCause((1,))


def test_root_cause_of_unlike_collectives_is_that_of_the_comparison() -> None:
    ranks = [made.passing(rank, counts=counts(1 + (rank == 1))) for rank in range(3)]
    assert diagnosis(*ranks, mismatch_cause=RootCause((1,))).root_cause == RootCause((1,))
    skipped = diagnosis(made.passing(0), made.passing(1, made.skipped("no"))).root_cause
    assert (skipped.ranks, bool(skipped.unknown)) == ((), True)


def test_passed_test_has_no_diagnosis() -> None:
    assert judge(made.run(made.passing(0), made.passing(1)), Output.FAILED).diagnoses == ()
    expected = made.xfailed("known")
    ranks = made.passing(0, expected), made.passing(1, expected)
    assert judge(made.run(*ranks), Output.FAILED).diagnoses == ()


def test_properties_are_on_every_report_from_the_first_failure_on() -> None:
    merged = judge(made.run(made.passing(0), made.passing(1, ASSERTED)), Output.FAILED)
    setup, call, teardown = (dict(report.user_properties) for report in merged.reports)
    assert setup == {}
    assert call == teardown
    assert call["ddp.kind"] == "failure"
    assert call["ddp.rank0"] == "passed"
    assert str(call["ddp.rank1"]).startswith("failed in call, ")


# ------------------------------------------------------------------ files


def test_record_is_written_whole_and_removed(tmp_path: Path) -> None:
    outcome = made.run(made.passing(0), dead(stacks=CRASHED))
    merged = judge(outcome, Output.FAILED)
    diagnosis_files.write(tmp_path / "new" / "folder", outcome, merged.diagnoses)
    (path,) = (tmp_path / "new" / "folder").iterdir()
    assert path == diagnosis_files.path_of(tmp_path / "new" / "folder", outcome.nodeid)
    read = json.loads(path.read_text(encoding="utf-8"))
    assert read == diagnosis_files.record(outcome, merged.diagnoses)
    assert read["failures"][0]["ranks"][1]["function"] == "helper"
    diagnosis_files.write(tmp_path / "new" / "folder", outcome, ())
    assert not path.exists()


def test_names_of_files_are_tame_and_different() -> None:
    nodeids = ["a/b.py::test[x/y]", "a/b.py::test[x y]", "\udcff", "/", "x" * 500, "x" * 501]
    names = [diagnosis_files.path_of(Path("d"), nodeid).name for nodeid in nodeids]
    assert len(set(names)) == len(nodeids)
    for name in names:
        assert name.isascii()
        assert "/" not in name
        assert len(name) < 128


# ------------------------------------------------------------------ the table


def row(rank: int, **known: Any) -> RankDiagnosis:
    empty = RankDiagnosis(rank, "waits", ("call",), "", "", None, None, "", None, "", "", ())
    return replace(empty, **known)


def test_row_fits_on_one_line() -> None:
    assert list(rows_of([row(0, place=code_line("a.py:1")), row(10, state="ended", phase=())])) == [
        "",
        "rank 0   waits  call  a.py:1",
        "rank 10  ended",
    ]


def test_wide_row_is_folded() -> None:
    wide = row(0, phase=("call", "x" * 40), collective="all_reduce #1 of the default group")
    assert list(rows_of([replace(wide, place=code_line("a.py:1"))])) == [
        "",
        f"rank 0  waits  call: {'x' * 40}",
        "               all_reduce #1 of the default group",
        "               a.py:1",
    ]


def test_cell_that_is_too_long_goes_on_below_itself() -> None:
    wide = row(0, collective="all_reduce #1 of the default group in thread " + "x" * 30)
    assert [*sentences(*rows_of([replace(wide, place=code_line("a.py:1"))])).lines] == [
        "\n",
        "rank 0  waits  call\n",
        "               all_reduce #1 of the default group in thread\n",
        f"               {'x' * 30}\n",
        "               a.py:1\n",
    ]


def test_phase_is_kept() -> None:
    assert diagnosis(made.passing(0), dead()).phase is Phase.CALL
