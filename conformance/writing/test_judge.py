"""The judges of the single-writer guarantees on hand-made histories."""

from __future__ import annotations

from ddp_conformance.framework.history import Failed
from ddp_conformance.writing import judge
from ddp_conformance.writing.history import Opened, ReadBack, ReportedPaths, Wrote
from ddp_conformance.writing.judge_publishing import judge_shared_files
from hypothesis import given, settings
from hypothesis import strategies as st


def test_two_writers_are_named() -> None:
    (violation,) = judge.judge_single_writer([Wrote(0, "log"), Wrote(2, "log"), Wrote(0, "a")])
    apart = "each in a folder of its own; if whichever rank is first writes it and others find it,"
    assert str(violation) == f"log written by ranks 0 and 2, {apart} declare 'first_wins'"


def test_a_lock_may_be_many_ranks_and_a_lock_of_some_of_them_may_not() -> None:
    log, lock = Wrote(0, "log"), Wrote(0, "log.lock", lock=True)
    assert judge.judge_single_writer([log, lock, Wrote(1, "log.lock", lock=True)]) == ()
    (violation,) = judge.judge_single_writer([log, lock, Wrote(1, "log.lock")])
    assert str(violation).startswith("log.lock written by ranks 0 and 1, each in a folder")


def test_the_first_wins_and_nobody_writes_again() -> None:
    first = [Wrote(0, "log"), Wrote(1, "log"), Wrote(0, "lock", lock=True)]
    assert judge.judge_first_wins([*first, Wrote(1, "lock", lock=True, there=True)]) == ()
    again = [Wrote(1, "log", there=True), Wrote(0, "log", there=True)]
    (violation,) = judge.judge_first_wins([*first, *again])
    assert str(violation) == "log written by ranks 0 and 1, though it was there"
    assert judge.judge_first_wins([Wrote(0, "lock", lock=True)]) == (judge.NOTHING,)


files = st.dictionaries(st.sampled_from(["a", "b", "sub/c"]), st.integers(0, 3), min_size=1)


@settings(deadline=None, max_examples=50)  # the machine may be busy
@given(files, st.sets(st.integers(0, 3)), st.data())
def test_locks_of_any_ranks_pass_and_any_rank_that_takes_none_is_named(
    writers: dict[str, int], ranks: set[int], data: st.DataObject
) -> None:
    wrote = [Wrote(rank, path) for path, rank in writers.items()]
    wrote += [Wrote(rank, "lock", lock=True) for rank in ranks]
    wrote = data.draw(st.permutations(wrote))
    opened = [Opened(one.rank, one.path, lock=one.lock) for one in wrote]
    assert judge.judge_single_writer(wrote) == ()
    assert judge_shared_files(opened) == ()
    found = [
        *judge.judge_single_writer([*wrote, Wrote(4, "lock")]),
        *judge_shared_files([*opened, Opened(4, "lock")]),
    ]
    assert len(found) == (2 if ranks else 0)
    assert all(violation.what.startswith("lock ") for violation in found)


def test_no_file_at_all_is_no_pass() -> None:
    for history in ([], [Wrote(0, "log.lock", lock=True)]):
        (violation,) = judge.judge_single_writer(history)
        assert str(violation).startswith(
            "no rank wrote a file into case.directory; one that writes when"
        )


def test_a_rank_that_cannot_bear_another_one_first_is_named() -> None:
    (violation,) = judge.judge_who_was_first([Wrote(0, "log"), Failed(1, "FileExistsError: x")])
    assert str(violation) == "rank 1 raises where another rank was first: FileExistsError: x"


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


def test_different_and_missing_paths_are_named() -> None:
    history = [ReportedPaths(0, ("a",)), ReportedPaths(1, ("b",), missing=("b",))]
    assert [str(violation) for violation in judge.judge_paths(history)] == [
        "the paths differ: rank 0: ['a']; rank 1: ['b']",
        "b, reported by rank 1, does not exist",
    ]


def test_no_path_is_no_pass() -> None:
    (violation,) = judge.judge_paths([ReportedPaths(0, ()), ReportedPaths(1, ())])
    assert str(violation) == "no rank reported a path"
