"""Which ends of served processes fail the test that has not looked at them, and in which words."""

from __future__ import annotations

import pytest

from pytest_ddp.extensions.adopt.judging import ADVICE, EARLY_ADVICE, Judge, ends_text, hang_proof
from pytest_ddp.extensions.adopt.watching import ExitDeadline
from pytest_ddp.outcome.outcome import Hang, HangKind, RankLine
from pytest_ddp.protocol.rank_status import Handled
from pytest_ddp.protocol.status_page import StatusNote
from tests.unit.extensions.adopt.processes import Process, ended
from tests.unit.handmade import SITE, stacks
from tests.unit.standings import code_line, standing

EXPLAINED = "DDP-066: python -m pytest_ddp explain DDP-066"
NODEID = "test_it.py::test_it"
LEFT = StatusNote(phase=("target",))
HANG = Hang(
    HangKind.FOR_ENDED,
    "rank 0 waits, rank 1 has ended the test without it",
    (0,),
    (RankLine(0, "waits", ("target",), "barrier #1", None),),
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
def test_an_end_that_nobody_asked_for_exit_code_was_read(code: int) -> None:
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
        ended(3, LEFT, exit_code_was_read=True),
        ended(-15, LEFT, ended_by_test=True),
        ended(3, LEFT, is_judged=False),
    ],
    ids=["returned", "asked for its exit code", "terminated", "of a pool"],
)
def test_other_ends_are_no_problem(process: Process) -> None:
    assert problems(process) == ""


def test_an_early_end_with_a_read_exit_code_of_zero_is_a_problem() -> None:
    assert problems(ended(0, LEFT, exit_code_was_read=True)) != ""


def test_exits_may_be_left_to_the_test_but_no_hang() -> None:
    hung = ended(-9, LEFT, rank=0, hang=HANG)
    assert problems(ended(3, LEFT), checks_exits=False) == ""
    assert problems(hung, checks_exits=False).startswith(HANG.sentence)


def test_a_hang_exit_code_was_read_once_and_not_as_an_end() -> None:
    both = [ended(-9, LEFT, rank=rank, hang=HANG) for rank in range(2)]
    text = problems(*both, docs_url="https://a.example/")
    assert text.count(HANG.sentence) == 1
    assert ADVICE not in text
    assert text.endswith("\nDDP-001: https://a.example/troubleshooting.html#ddp-001")


def test_processes_of_a_hang_are_judged_together() -> None:
    """One process of the hang has been killed, and another one is about to be."""
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


def test_several_are_reported_with_all_tests_that_started_them() -> None:
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


def test_a_good_end_of_what_was_left_is_no_problem() -> None:
    judge = Judge(lambda: None, checks_exits=True)
    judge.add(ended(0, nodeid="test_it.py::test_early").watched)
    assert judge.problems(ExitDeadline.NOW, NODEID) == ("", "")


def test_only_asked_processes_are_found() -> None:
    judge = Judge(lambda: None, checks_exits=True)
    one, other = ended(0), ended(0)
    judge.add(one.watched)
    judge.add(other.watched)
    assert judge.of([other.popen, object()]) == [other.watched]


USER = ("/home/me/tests/test_sum.py", 33, "add")
TORCH = (f"{SITE}/torch/distributed/distributed_c10d.py", 3252, "all_reduce")


@pytest.mark.parametrize(
    ("code", "mark", "words"),
    [
        (-9, StatusNote(phase=("target",)), "died of SIGKILL"),
        (
            3,
            StatusNote(phase=("target", "init_process_group")),
            "exited with code 3 in init_process_group",
        ),
        (0, StatusNote(phase=("target",)), "exited with code 0 before its target had returned"),
        (None, StatusNote(phase=("target",)), "is still running"),
        (
            -9,
            StatusNote(
                ("target", "DDP construction"),
                code_line("test_sum.py:4 in add"),
                code_line("test_sum.py:9 in add"),
            ),
            "died of SIGKILL in DDP construction, last seen at test_sum.py:9 in add",
        ),
        (
            -9,
            StatusNote(("target", "DDP construction"), code_line("test_sum.py:4 in add")),
            "died of SIGKILL in DDP construction, begun at test_sum.py:4 in add",
        ),
        (
            -9,
            StatusNote(
                ("target",),
                code_line("test_sum.py:4 in add"),
                code_line(f"{SITE}/plugin/store.py:9 in wait"),
            ),
            "died of SIGKILL, begun at test_sum.py:4 in add",
        ),
        (
            -9,
            StatusNote(
                ("target",),
                code_line(f"{SITE}/a/b.py:4 in c"),
                code_line(f"{SITE}/plugin/store.py:9 in wait"),
            ),
            "died of SIGKILL, last seen at plugin/store.py:9 in wait",
        ),
    ],
)
def test_an_end_is_one_line_without_a_stack(code: int | None, mark: StatusNote, words: str) -> None:
    assert ends_text([ended(code, mark).watched]) == f"SpawnProcess-1 (pid 4711) {words}"


def test_a_stack_has_the_place_and_the_page_is_not_needed() -> None:
    mark = StatusNote(
        ("target",), code_line("test_sum.py:4 in add"), code_line("test_sum.py:9 in add")
    )
    dump = stacks(TORCH, USER)
    line, empty, title, *frames = ends_text([ended(-6, mark, dump, rank=1).watched]).splitlines()
    assert line.startswith("SpawnProcess-1 (rank 1, pid 4711) died of SIGABRT, at ")
    assert line.endswith("test_sum.py:33 in add")
    assert (empty, title) == ("", "SpawnProcess-1 (rank 1, pid 4711), most recent call first:")
    assert [frame.partition(" in ")[2] for frame in frames[:2]] == ["all_reduce", "add"]


def test_ends_are_paragraphs() -> None:
    text = ends_text(
        [ended(3, StatusNote(("target",))).watched, ended(4, StatusNote(("target",))).watched]
    )
    assert [part[-1] for part in text.split("\n\n")] == ["3", "4"]


def test_what_a_process_raised_ends_its_line() -> None:
    process = ended(1, StatusNote(("target",)))
    process.raised = "ValueError: only on rank 1"
    assert ends_text([process.watched]).endswith("exited with code 1: ValueError: only on rank 1")


def test_a_hang_is_the_proof_a_row_for_each_rank_and_stacks_in_their_order() -> None:
    rows = tuple(
        RankLine(
            rank,
            "waits",
            ("target", "forward"),
            f"all_reduce #{rank + 1}",
            code_line("test_sum.py:33"),
        )
        for rank in range(2)
    )
    nobody = RankLine(-17, "runs", ("target",), "", None)
    hang = Hang(HangKind.FOR_ENDED, "rank 0 waits in all_reduce #1", (1,), (*rows, nobody))
    dump = stacks(TORCH, USER)
    both = [
        ended(-9, StatusNote(("target",)), dump, rank=rank, hang=hang).watched for rank in (1, 0)
    ]
    first, *lines = hang_proof(hang, both).splitlines()
    assert first == hang.sentence
    assert [" ".join(line.split()) for line in lines if " #" in line] == [
        "rank 0 waits forward all_reduce #1 test_sum.py:33",
        "rank 1 waits forward all_reduce #2 test_sum.py:33",
    ]
    titles = [line for line in lines if line.endswith("most recent call first:")]
    assert [title.split("rank ")[1][0] for title in titles] == ["0", "1"]
    assert "-17" not in "\n".join(lines)


def test_an_exception_whose_handler_waits_stands_before_the_proof() -> None:
    hang = Hang(
        HangKind.FOR_ENDED,
        "rank 1 waits",
        (0,),
        (RankLine(1, "waits", ("target",), "", None),),
    )
    error = Handled("ValueError", "no label", code_line("test_sum.py:7 in add"))
    both = [
        ended(
            -9, StatusNote(("target",)), rank=rank, hang=hang, status=standing(handled=mine)
        ).watched
        for rank, mine in enumerate((None, error))
    ]
    first, *_ = hang_proof(hang, both).splitlines()
    assert first == f"while handling ValueError: no label (rank 1, test_sum.py:7): {hang.sentence}"
