"""Properties of the single-writer judges: all that is legal passes, any single breach is named."""

from __future__ import annotations

from ddp_conformance.writing import judge as judge_writing
from ddp_conformance.writing.history import ReadBack, ReportedPaths, Wrote
from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies import quick

files = st.dictionaries(st.sampled_from(["a", "b", "sub/c"]), st.integers(0, 3), min_size=1)


@quick
@given(files, st.data())
def test_single_writers_pass_and_any_second_one_is_named(
    writers: dict[str, int], data: st.DataObject
) -> None:
    history = [Wrote(rank, path) for path, rank in writers.items()]
    assert judge_writing.judge_single_writer(history) == ()
    path = data.draw(st.sampled_from(sorted(writers)))
    (found,) = judge_writing.judge_single_writer([*history, Wrote(4, path)])
    assert found.what.startswith(f"{path} written by ranks {writers[path]} and 4, each in a ")


@quick
@given(st.integers(1, 6), st.data())
def test_records_in_any_order_pass_and_any_lost_or_doubled_one_is_named(
    number: int, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(number)))
    record = data.draw(st.sampled_from(order))
    lost = [other for other in order if other != record]
    assert judge_writing.judge_records([ReadBack(0, tuple(order))], number) == ()
    for numbers, times in ((lost, 0), ([*order, record], 2)):
        (found,) = judge_writing.judge_records([ReadBack(0, tuple(numbers))], number)
        assert found.what == f"record {record} stands there {times} times"


@quick
@given(
    st.lists(st.sampled_from(["log", "runs/a", "b"]), min_size=1, max_size=3),
    st.integers(2, 4),
    st.data(),
)
def test_same_paths_pass_and_any_other_or_missing_one_is_named(
    paths: list[str], world_size: int, data: st.DataObject
) -> None:
    history = [ReportedPaths(rank, tuple(paths)) for rank in range(world_size)]
    assert judge_writing.judge_paths(history) == ()
    rank = data.draw(st.integers(0, world_size - 1))
    history[rank] = ReportedPaths(rank, (*paths, "elsewhere"), missing=("elsewhere",))
    different, missing = judge_writing.judge_paths(history)
    assert different.what.startswith("the paths differ: ")
    assert missing.what == f"elsewhere, reported by rank {rank}, does not exist"
