"""The judges of the single-writer guarantees on hand-made histories."""

from __future__ import annotations

from ddp_conformance.checks import judge_writing as judge
from ddp_conformance.history import ReadBack, Told, Wrote


def test_one_writer_for_each_file_passes() -> None:
    assert judge.judge_single_writer([Wrote(0, "log"), Wrote(1, "log.1"), Wrote(0, "best")]) == ()


def test_two_writers_are_named() -> None:
    (violation,) = judge.judge_single_writer([Wrote(0, "log"), Wrote(2, "log"), Wrote(0, "a")])
    assert str(violation) == "log written by ranks 0 and 2"


def test_no_file_at_all_is_no_pass() -> None:
    (violation,) = judge.judge_single_writer([])
    assert str(violation) == "no rank wrote a file into case.directory"


def test_each_record_once_passes() -> None:
    assert judge.judge_records([ReadBack(0, (1, 0, 2))], 3) == ()


def test_wrong_records_are_named() -> None:
    found = judge.judge_records([ReadBack(0, (0, 0, 2, 7))], 3)
    assert [str(violation) for violation in found] == [
        "record 0 stands there 2 times",
        "record 1 stands there 0 times",
        "record 7 stands there 1 times",
    ]


def test_unreadable_records_are_a_violation() -> None:
    (violation,) = judge.judge_records([ReadBack(0, (), "JSONDecodeError: line 1")], 3)
    assert str(violation) == "the records cannot be read: JSONDecodeError: line 1"


def test_equal_paths_that_exist_pass() -> None:
    assert judge.judge_paths([Told(0, ("a",)), Told(1, ("a",))]) == ()


def test_different_and_missing_paths_are_named() -> None:
    history = [Told(0, ("a",)), Told(1, ("b",), missing=("b",))]
    assert [str(violation) for violation in judge.judge_paths(history)] == [
        "the paths differ: rank 0: ['a']; rank 1: ['b']",
        "b, told by rank 1, does not exist",
    ]


def test_no_path_is_no_pass() -> None:
    (violation,) = judge.judge_paths([Told(0, ()), Told(1, ())])
    assert str(violation) == "no rank told a path"
