"""The words for served processes that hang, or have ended."""

from __future__ import annotations

import pytest

from pytest_ddp.extensions.adopt.spawn_texts import of_ends, of_hang
from pytest_ddp.outcome.outcome import Hang, HangKind, RankLine
from pytest_ddp.protocol.rank_status import Handled
from pytest_ddp.protocol.status_page import StatusNote
from tests.unit.extensions.adopt.processes import ended
from tests.unit.handmade import SITE, stacks
from tests.unit.standings import standing

USER = ("/home/me/tests/test_sum.py", 33, "add")
TORCH = (f"{SITE}/torch/distributed/distributed_c10d.py", 3252, "all_reduce")


@pytest.mark.parametrize(
    ("code", "mark", "words"),
    [
        (-9, StatusNote(phase="target"), "died of SIGKILL"),
        (
            3,
            StatusNote(phase="target: init_process_group"),
            "exited with code 3 in init_process_group",
        ),
        (0, StatusNote(phase="target"), "exited with code 0 before its target had returned"),
        (None, StatusNote(phase="target"), "is still running"),
        (
            -9,
            StatusNote("target: DDP construction", "test_sum.py:4 in add", "test_sum.py:9 in add"),
            "died of SIGKILL in DDP construction, last seen at test_sum.py:9 in add",
        ),
        (
            -9,
            StatusNote("target: DDP construction", "test_sum.py:4 in add"),
            "died of SIGKILL in DDP construction, begun at test_sum.py:4 in add",
        ),
        (
            -9,
            StatusNote("target", "test_sum.py:4 in add", f"{SITE}/plugin/store.py:9 in wait"),
            "died of SIGKILL, begun at test_sum.py:4 in add",
        ),
        (
            -9,
            StatusNote("target", f"{SITE}/a/b.py:4 in c", f"{SITE}/plugin/store.py:9 in wait"),
            "died of SIGKILL, last seen at plugin/store.py:9 in wait",
        ),
    ],
)
def test_an_end_is_one_line_without_a_stack(code: int | None, mark: StatusNote, words: str) -> None:
    assert of_ends([ended(code, mark).watched]) == f"SpawnProcess-1 (pid 4711) {words}"


def test_a_stack_says_where_it_was_and_the_page_need_not() -> None:
    mark = StatusNote("target", "test_sum.py:4 in add", "test_sum.py:9 in add")
    dump = stacks(TORCH, USER)
    line, empty, title, *frames = of_ends([ended(-6, mark, dump, rank=1).watched]).splitlines()
    assert line.startswith("SpawnProcess-1 (rank 1, pid 4711) died of SIGABRT, at ")
    assert line.endswith("test_sum.py:33 in add")
    assert (empty, title) == ("", "SpawnProcess-1 (rank 1, pid 4711), most recent call first:")
    assert [frame.partition(" in ")[2] for frame in frames[:2]] == ["all_reduce", "add"]


def test_ends_are_paragraphs() -> None:
    text = of_ends([ended(3, StatusNote("target")).watched, ended(4, StatusNote("target")).watched])
    assert [part[-1] for part in text.split("\n\n")] == ["3", "4"]


def test_what_a_process_raised_ends_its_line() -> None:
    process = ended(1, StatusNote("target"))
    process.raised = "ValueError: only on rank 1"
    assert of_ends([process.watched]).endswith("exited with code 1: ValueError: only on rank 1")


def test_a_hang_is_the_proof_a_row_for_each_rank_and_stacks_in_their_order() -> None:
    rows = tuple(
        RankLine(rank, "waits", "target: forward", f"all_reduce #{rank + 1}", "test_sum.py:33")
        for rank in range(2)
    )
    nobody = RankLine(-17, "runs", "target", "", "")
    hang = Hang(
        HangKind.FOR_ENDED, "deadlock: rank 0 waits in all_reduce #1", (1,), (*rows, nobody)
    )
    dump = stacks(TORCH, USER)
    both = [ended(-9, StatusNote("target"), dump, rank=rank, hang=hang).watched for rank in (1, 0)]
    first, *lines = of_hang(hang, both).splitlines()
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
        "deadlock: rank 1 waits",
        (0,),
        (RankLine(1, "waits", "target", "", ""),),
    )
    error = Handled("ValueError", "no label", "test_sum.py:7 in add")
    both = [
        ended(-9, StatusNote("target"), rank=rank, hang=hang, status=standing(handled=mine)).watched
        for rank, mine in enumerate((None, error))
    ]
    first, *_ = of_hang(hang, both).splitlines()
    assert first == f"while handling ValueError: no label (rank 1, test_sum.py:7): {hang.sentence}"
