"""Which ends of served processes fail the test that has not looked at them."""

from __future__ import annotations

import pytest

from pytest_ddp.extensions.adopt.exit_deadline import ExitDeadline
from pytest_ddp.extensions.adopt.judging import ADVICE, EARLY_ADVICE, Judge
from pytest_ddp.outcome.outcome import Hang, HangKind, RankLine
from pytest_ddp.protocol.status_page import StatusNote
from tests.unit.extensions.adopt.processes import Process, ended

EXPLAINED = "DDP-066: python -m pytest_ddp explain DDP-066"
NODEID = "test_it.py::test_it"
LEFT = StatusNote(phase="target")
HANG = Hang(
    HangKind.FOR_ENDED,
    "deadlock: rank 0 waits, rank 1 has ended the test without it",
    (0,),
    (RankLine(0, "waits", "target", "barrier #1", ""),),
)


def problems(
    *processes: Process,
    due: ExitDeadline = ExitDeadline.NOW,
    checks_exits: bool = True,
    docs_url: str = "",
) -> str:
    judge = Judge(lambda: None, checks_exits=checks_exits, docs_url=docs_url)
    for process in processes:
        judge.add(process.watched)
    return judge.problems(due, NODEID).own


@pytest.mark.parametrize("code", [3, -9])
def test_an_end_that_nobody_asked_for_is_told(code: int) -> None:
    text = problems(ended(code, LEFT))
    assert text.splitlines()[0].startswith("SpawnProcess-1 (pid 4711) ")
    assert text.endswith(f"Started by test_it.py::test_it.\n{ADVICE}\n{EXPLAINED}")


def test_so_is_one_before_its_target_has_returned() -> None:
    text = problems(ended(0, LEFT))
    assert "exited with code 0 before its target had returned" in text
    assert text.endswith(f"{EARLY_ADVICE}\n{EXPLAINED}")


@pytest.mark.parametrize(
    "process",
    [
        ended(0),
        ended(3, LEFT, is_told=True),
        ended(-15, LEFT, ended_by_test=True),
        ended(3, LEFT, is_judged=False),
    ],
    ids=["returned", "asked for its exit code", "terminated", "of a pool"],
)
def test_nothing_is_said_of_others(process: Process) -> None:
    assert problems(process) == ""


def test_an_early_end_is_none_that_an_exit_code_of_zero_tells() -> None:
    assert problems(ended(0, LEFT, is_told=True)) != ""


def test_exits_may_be_left_to_the_test_but_no_hang() -> None:
    hung = ended(-9, LEFT, rank=0, hang=HANG)
    assert problems(ended(3, LEFT), checks_exits=False) == ""
    assert problems(hung, checks_exits=False).startswith(HANG.sentence)


def test_a_hang_is_told_once_and_not_as_an_end() -> None:
    both = [ended(-9, LEFT, rank=rank, hang=HANG) for rank in range(2)]
    text = problems(*both, docs_url="https://a.example/")
    assert text.count(HANG.sentence) == 1
    assert ADVICE not in text
    assert text.endswith("\nDDP-001: https://a.example/troubleshooting.html#ddp-001")


def test_processes_of_a_hang_are_judged_together() -> None:
    """Though one of them has been killed and another one is about to be."""
    hung = ended(-9, LEFT, rank=0, hang=HANG)
    dying = ended(None, LEFT, rank=1, hang=HANG, ends_with=-9)
    others = ended(None, LEFT, rank=2), ended(None, LEFT, rank=3, hang=HANG)
    judge = Judge(lambda: None, checks_exits=True)
    for process in (hung, dying, *others):
        judge.add(process.watched)
    assert judge.problems(ExitDeadline.NOW, NODEID).own.count(HANG.sentence) == 1
    assert [each.popen.files.is_closed for each in (hung, dying, *others)] == [
        *(True, True),
        *(False, False),
    ]


def test_that_of_a_fixtures_process_fails_whoever_is_next() -> None:
    hung = ended(-9, LEFT, rank=0, hang=HANG, due=ExitDeadline.END)
    assert problems(hung, due=ExitDeadline.NOW).startswith(HANG.sentence)


@pytest.mark.parametrize("due", list(ExitDeadline))
def test_an_end_is_judged_once_it_is_due(due: ExitDeadline) -> None:
    judge = Judge(lambda: None, checks_exits=True)
    process = ended(3, LEFT, due=due)
    judge.add(process.watched)
    said = [bool(judge.problems(phase, NODEID).own) for phase in ExitDeadline]
    assert said == [phase == due for phase in ExitDeadline]
    assert process.popen.files.is_closed


def test_one_that_runs_is_judged_when_it_has_ended() -> None:
    judge = Judge(lambda: None, checks_exits=True)
    process = ended(None, LEFT)
    judge.add(process.watched)
    assert judge.problems(ExitDeadline.END, NODEID) == ("", "")
    assert not process.popen.files.is_closed
    process.popen.returncode = 3
    assert "exited with code 3" in judge.problems(ExitDeadline.END, NODEID).own


def test_several_are_told_with_all_tests_that_started_them() -> None:
    other = ended(0, LEFT, nodeid="test_it.py::test_other", was_joined=True)
    text = problems(ended(3, LEFT), other)
    assert "Started by test_it.py::test_it, test_it.py::test_other." in text
    assert text.endswith(f"{ADVICE}\n{EXPLAINED}")


@pytest.mark.parametrize("due", [ExitDeadline.NOW, ExitDeadline.TEARDOWN])
@pytest.mark.parametrize("hang", [None, HANG], ids=["ended", "hung"])
def test_what_an_earlier_test_left_fails_no_other(due: ExitDeadline, hang: Hang | None) -> None:
    judge = Judge(lambda: None, checks_exits=True)
    judge.add(ended(-9, LEFT, rank=0, hang=hang, due=due, nodeid="test_it.py::test_early").watched)
    own, late = judge.problems(ExitDeadline.TEARDOWN, NODEID)
    assert own == ""
    assert late.startswith("test_it.py::test_early left processes running, which have failed")
    assert (HANG.sentence in late) is (hang is HANG)
    assert judge.problems(ExitDeadline.END, NODEID) == ("", "")


def test_it_fails_one_that_has_joined_it() -> None:
    assert "died of SIGKILL" in problems(
        ended(-9, LEFT, nodeid="test_it.py::test_early", was_joined=True)
    )


def test_nothing_is_said_of_a_good_end_of_what_was_left() -> None:
    judge = Judge(lambda: None, checks_exits=True)
    judge.add(ended(0, nodeid="test_it.py::test_early").watched)
    assert judge.problems(ExitDeadline.NOW, NODEID) == ("", "")


def test_only_asked_processes_are_found() -> None:
    judge = Judge(lambda: None, checks_exits=True)
    one, other = ended(0), ended(0)
    judge.add(one.watched)
    judge.add(other.watched)
    assert judge.of([other.popen, object()]) == [other.watched]
