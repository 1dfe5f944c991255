"""What ranks asked of their groups, side by side: errors, hints, and legal differences."""

from __future__ import annotations

import itertools
import linecache
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddp.deadlock.collectives import difference, needs_calls, root_cause, suspicions
from pytest_ddp.protocol.rank_status import CallRecord, CodeLine, GroupCount
from tests.unit.standings import call, code_line, count

_files = itertools.count()


def source(text: str) -> str:
    """A file with these lines, as far as tracebacks and hints can see."""
    path = f"/src/test_compared_{next(_files)}.py"
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    return path


def counts(*collectives: int, group: str = "0") -> dict[int, tuple[GroupCount, ...]]:
    members = range(len(collectives))
    return {rank: (count(n, *members, group=group),) for rank, n in enumerate(collectives)}


def differ(*ranks: tuple[CallRecord, ...]) -> str:
    numbers = (max((record.number for record in records), default=0) for records in ranks)
    return difference(counts(*numbers), dict(enumerate(ranks)))


# ------------------------------------------------------------------ whether to ask


def test_equal_digests_need_no_calls() -> None:
    mine = (count(3, 0, 1, what=7, where=9), count(1, 0, 1, group="3", what=1))
    assert not needs_calls({0: mine, 1: mine[::-1]})


@pytest.mark.parametrize("other", [{"what": 8}, {"where": 8}, {"collectives": 4}], ids=str)
def test_unequal_digests_need_calls(other: dict[str, int]) -> None:
    known = GroupCount("0", (0, 1, 2), 3, what=7, where=7)
    unlike: Any = other
    assert needs_calls({0: (known,), 1: (known,), 2: (replace(known, **unlike),)})


def test_second_group_alone_may_need_calls() -> None:
    same = count(1, 0, 1)
    assert needs_calls({r: (same, count(1, 0, 1, group="3", what=r)) for r in range(2)})


def test_groups_of_other_ranks_are_not_compared() -> None:
    ranks = {0: (count(5, 0, group="3"),), 1: (count(2, 1, group="4"),)}
    assert not needs_calls(ranks)
    assert difference(ranks, {}) == ""


# ------------------------------------------------------------------ what contradicts


UNLIKE = {
    "operation": (call(1), call(1, "broadcast", root=0)),
    "barrier": (call(1, "barrier", numel=None, dtype=None), call(1)),
    "reduce and all_reduce": (call(1, "reduce", root=None), call(1)),
    "reduce_scatter and reduce": (call(1, "reduce_scatter"), call(1, "reduce")),
    "reduce operation": (call(1), call(1, reduce_op="MAX")),
    "size": (call(1), call(1, numel=8)),
    "dtype": (call(1), call(1, dtype="int32")),
    "root": (call(1, "broadcast", root=0), call(1, "broadcast", root=1)),
    "root of gather": (
        call(1, "gather", root=0, numel=None, dtype=None),
        call(1, "gather", root=1, numel=None, dtype=None),
    ),
}


@pytest.mark.parametrize(("one", "two"), UNLIKE.values(), ids=UNLIKE.keys())
def test_contradiction(one: CallRecord, two: CallRecord) -> None:
    for pair in ((one, two), (two, one)):
        assert differ(*((record,) for record in pair)).startswith(
            "the ranks differ in collective #1 of the default group:"
        )


def pieces(operation: str, sends: str, receives: str, dtype: str = "float32") -> CallRecord:
    """A call with what it sends to each rank, and expects of each: ``1 2``, of one dtype."""
    sent, expected = (
        tuple(f"{size} x {dtype}" for size in sizes.split()) for sizes in (sends, receives)
    )
    made = call(1, operation, numel=None, dtype=dtype, reduce_op=None)
    return replace(made, sends=sent, receives=expected)


UNMET = {
    "list too short": (pieces("all_gather", "4", "4 4"), pieces("all_gather", "3", "4 3")),
    "splits": (pieces("all_to_all", "1 2", "1 2"), pieces("all_to_all", "1 2", "1 2")),
    "split forms": (pieces("all_to_all_single", "2", "2"), pieces("all_to_all", "1 3", "1 3")),
    "scattered": (pieces("reduce_scatter", "1 2", "1"), pieces("reduce_scatter", "2 1", "1")),
    "forms of a gather": (call(1, "all_gather_into_tensor"), pieces("all_gather", "8", "4 8")),
}


@pytest.mark.parametrize(("one", "two"), UNMET.values(), ids=UNMET.keys())
def test_what_is_sent_must_be_what_is_expected(one: CallRecord, two: CallRecord) -> None:
    shown = differ((one,), (two,))
    assert shown.startswith("the ranks differ in collective #1 of the default group:")
    assert re.search(r"\n  rank [01] sends \d x float32 to rank [01], which expects \d x ", shown)


def test_dtype_of_pieces_must_be_one() -> None:
    shown = differ((pieces("all_gather", "4", "4"),), (pieces("all_gather", "4", "4", "int32"),))
    assert "rank 0: all_gather(4 x float32)\n" in shown
    assert "rank 1: all_gather(4 x int32)\n" in shown


def test_uneven_pieces_are_shown() -> None:
    shown = differ(*((record,) for record in UNMET["splits"]))
    assert "all_to_all(sends 1 x float32; 2 x float32, receives 1 x float32; 2 x " in shown
    assert shown.endswith("rank 0 sends 2 x float32 to rank 1, which expects 1 x float32")


MET = {
    "uneven lists": (pieces("all_gather", "1", "1 2"), pieces("all_gather", "2", "1 2")),
    "one for all": (pieces("all_gather", "2", "2"), pieces("all_gather", "2", "2 2")),
    "splits": (pieces("all_to_all", "1 2", "1 3"), pieces("all_to_all_single", "3 4", "2 4")),
    "scattered": (pieces("reduce_scatter", "1 2", "1"), pieces("reduce_scatter", "1 2", "2")),
    "forms of a gather": (call(1, "all_gather_into_tensor"), pieces("all_gather", "4", "4")),
    "forms of a sum": (call(1), replace(pieces("all_reduce_coalesced", "", ""), reduce_op="SUM")),
}


@pytest.mark.parametrize(("one", "two"), MET.values(), ids=MET.keys())
def test_uneven_pieces_that_are_expected_are_legal(one: CallRecord, two: CallRecord) -> None:
    assert differ((replace(one, reduce_op=None),), (replace(two, reduce_op=None),)) == ""


def test_pieces_are_those_of_members_of_the_group() -> None:
    calls = {0: (pieces("all_to_all", "1 2", "1 3"),), 2: (pieces("all_to_all", "3 4", "2 4"),)}
    ranks = {rank: (count(1, 0, 2),) for rank in (0, 2)}
    assert difference(ranks, calls) == ""


def test_a_call_that_torch_refused_contradicts_nothing() -> None:
    refused = {rank: (call(1, numel=4 + rank),) for rank in range(2)}
    assert difference(counts(0, 0), refused) == ""
    assert difference(counts(1, 1), refused) != ""


def test_text_shows_all_ranks_side_by_side() -> None:
    path = source("dist.all_reduce(x, op=dist.ReduceOp.MAX)\n    dist.broadcast(y, 0)\n")
    shown = differ(
        (call(1, site=code_line(f"{path}:1"), reduce_op="MAX"),),
        (call(1, "broadcast", site=code_line(f"{path}:2"), root=0, numel=None, dtype=None),),
        (call(1, site=code_line("/src/gone.py:7")),),
    )
    assert shown == (
        "the ranks differ in collective #1 of the default group:\n"
        "  rank 0: all_reduce(MAX, 4 x float32)\n"
        f"    at {path}:1: dist.all_reduce(x, op=dist.ReduceOp.MAX)\n"
        "  rank 1: broadcast(root 0)\n"
        f"    at {path}:2: dist.broadcast(y, 0)\n"
        "  rank 2: all_reduce(SUM, 4 x float32)\n"
        "    at /src/gone.py:7: /src/gone.py:7"
    )


def test_first_difference_is_reported() -> None:
    mine = tuple(call(number) for number in range(1, 5))
    other = (mine[0], call(2), call(3, numel=8), call(4, dtype="int32"))
    assert "collective #3 " in differ(mine, other)
    assert "collective #3 " in differ(mine[::-1], other[::-1])


def test_any_two_ranks_may_be_the_ones_that_differ() -> None:
    assert "collective #1 " in differ((call(1),), (call(1),), (call(1, numel=8),))
    # An unknown size agrees with everything, and hides nothing between the others.
    unknown = call(1, "all_reduce_coalesced", numel=None, dtype=None)
    assert "collective #1 " in differ((unknown,), (call(1),), (call(1, numel=8),))


def test_difference_names_the_group_by_its_members() -> None:
    shown = difference(
        counts(1, 1, group="3"),
        {0: (call(1, group="3"),), 1: (call(1, group="3", numel=8),)},
    )
    assert shown.startswith("the ranks differ in collective #1 of the group of ranks 0, 1:")


def test_calls_of_other_groups_are_no_part_of_it() -> None:
    calls = {0: (call(1), call(1, group="3")), 1: (call(1, group="3"), call(1, numel=8))}
    ranks = {r: (count(1, 0, 1), count(1, 0, 1, group="3")) for r in range(2)}
    assert difference(ranks, calls).startswith("the ranks differ in collective #1 of the default")
    assert difference({r: own[1:] for r, own in ranks.items()}, calls) == ""


# ------------------------------------------------------------------ what is legal


LEGAL = {
    "lines": (call(1, site=code_line("/src/a.py:3")), call(1, site=code_line("/src/b.py:7"))),
    "sizes of uneven gathers": (call(1, "all_gather", numel=None), call(1, "all_gather")),
    "forms of all_gather": (
        call(1, "all_gather", numel=None, dtype=None),
        call(1, "all_gather_into_tensor"),
    ),
    "forms of reduce_scatter": (
        call(1, "reduce_scatter", reduce_op="SUM", numel=None, dtype=None),
        call(1, "reduce_scatter_tensor", reduce_op="SUM"),
    ),
    "forms of all_to_all": (
        call(1, "all_to_all", numel=None, dtype=None),
        call(1, "all_to_all_single", numel=None, dtype=None),
    ),
    "coalesced": (call(1, "all_reduce_coalesced", numel=None, dtype=None), call(1)),
}


@pytest.mark.parametrize(("one", "two"), LEGAL.values(), ids=LEGAL.keys())
def test_legal_asymmetry(one: CallRecord, two: CallRecord) -> None:
    assert differ((one,), (two,)) == ""
    assert differ((two,), (one,)) == ""


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["all_reduce", "all_gather", "broadcast", "barrier", "all_to_all"]),
            st.sampled_from([None, 4, 8]),
            st.lists(st.integers(1, 9), min_size=3, max_size=3),
            st.lists(st.booleans(), min_size=3, max_size=3),
        ),
        max_size=6,
    )
)
def test_ranks_that_ask_for_the_same_never_differ(
    program: list[tuple[str, int | None, list[int], list[bool]]],
) -> None:
    """Whatever the lines are, and whatever of it C++ asked for on some ranks."""
    ranks = tuple(
        tuple(
            call(number, operation, numel=numel, site=code_line(f"/src/a.py:{lines[rank]}"))
            for number, (operation, numel, lines, python) in enumerate(program, 1)
            if python[rank]
        )
        for rank in range(3)
    )
    assert difference(counts(*[len(program)] * 3), dict(enumerate(ranks))) == ""


# ------------------------------------------------------------------ where they part


def loop(numbers: range, line: int = 1) -> tuple[CallRecord, ...]:
    return tuple(call(number, site=code_line(f"/src/loop.py:{line}")) for number in numbers)


def test_rank_that_stops_earlier() -> None:
    shown = differ(loop(range(1, 4)), loop(range(1, 3)))
    assert shown == (
        "the ranks diverge at collective #3 of the default group:\n"
        "  rank 0: all_reduce(SUM, 4 x float32)\n"
        "    at /src/loop.py:1: /src/loop.py:1\n"
        "  rank 1: no collective"
    )


def test_rank_that_never_called() -> None:
    shown = differ(loop(range(1, 4)), (), loop(range(1, 4)), ())
    assert shown.startswith("the ranks diverge at collective #1 ")
    assert shown.endswith("  ranks 1, 3: no collective")


def test_one_collective_more_in_the_middle() -> None:
    extra = (*loop(range(1, 3)), call(3, site=code_line("/src/loop.py:9")), *loop(range(4, 5)))
    shown = differ(extra, loop(range(1, 4)))
    assert shown.startswith("the ranks diverge at collective #3 ")
    assert "rank 1" in shown


def test_same_text_on_two_lines_is_no_parting() -> None:
    path = source("dist.all_reduce(x)\ndist.all_reduce(x)\ndist.barrier()\n")
    one = (call(1, site=code_line(f"{path}:1")), call(2, site=code_line(f"{path}:1")))
    two = (call(1, site=code_line(f"{path}:2")),)
    assert differ(one, two).startswith("the ranks diverge at collective #2 ")


def test_ranks_that_asked_as_often_do_not_part() -> None:
    assert differ(loop(range(1, 3), line=1), loop(range(1, 3), line=2)) == ""


def test_collective_that_came_from_elsewhere_parts_them() -> None:
    # Rank 1's first comes from C++: DDP's reducer, for example.
    shown = difference(counts(3, 2), {0: loop(range(1, 4)), 1: loop(range(2, 3))})
    assert shown.startswith("the ranks diverge at collective #1 ")
    assert shown.endswith("  rank 1: one not known, from C++ or long ago")


def test_rank_without_any_call_from_python_does_not_part_them() -> None:
    shown = difference(counts(3, 2), {0: loop(range(1, 4)), 1: ()})
    assert shown.startswith("the ranks diverge at collective #3 ")


def test_forgotten_calls_are_no_parting() -> None:
    one, two = loop(range(953, 3001)), loop(range(952, 3000))
    assert difference(counts(3000, 2999), {0: one, 1: two}).startswith(
        "the ranks diverge at collective #3000 "
    )


def test_call_from_elsewhere_among_many_parts_them() -> None:
    two = (*loop(range(1, 1500)), *loop(range(1501, 2001)))
    shown = difference(counts(2001, 2000), {0: loop(range(1, 2002)), 1: two})
    assert shown.startswith("the ranks diverge at collective #1500 ")


def test_every_group_is_compared() -> None:
    ranks = {r: (count(1, 0, 1), count(1, 0, 1, group="3")) for r in range(2)}
    calls = {r: (call(1), call(1, group="3", numel=4 + r)) for r in range(2)}
    assert "collective #1 of the group of ranks 0, 1" in difference(ranks, calls)


def test_sides_leave_out_what_one_rank_alone_asked_for() -> None:
    ranks = {0: loop(range(1, 4)), 1: loop(range(1, 3))}
    assert difference(counts(3, 2), ranks, sides=2) == ""
    assert difference(counts(3, 2), ranks, sides=1) != ""


def test_unequal_numbers_without_any_call_are_left_to_the_merge() -> None:
    assert difference(counts(3, 2), {0: (), 1: ()}) == ""


def test_contradiction_is_reported_before_the_parting() -> None:
    shown = differ((*loop(range(1, 3)), call(3)), (*loop(range(1, 2), line=5), call(2, numel=8)))
    assert shown.startswith("the ranks differ in collective #2 ")


# ------------------------------------------------------------------ what C++ issues


def native(number: int, **known: Any) -> CallRecord:
    return call(number, site=None, reduce_op=None, **known)


def test_first_meeting_with_what_cpp_issued_is_reported_before_the_last_difference() -> None:
    path = source("dist.all_reduce(x)\n")
    one = (call(1, site=code_line(f"{path}:1")), native(2), native(3, operation="broadcast"))
    two = (native(1), native(2), native(3))
    assert differ(one, two) == (
        "the ranks first diverge at collective #1 of the default group:\n"
        "  rank 0: all_reduce(SUM, 4 x float32)\n"
        f"    at {path}:1: dist.all_reduce(x)\n"
        "  rank 1: all_reduce(4 x float32)\n"
        "    issued in C++, as DDP's gradients and buffers are\n"
        "the ranks differ in collective #3 of the default group:\n"
        "  rank 0: broadcast(4 x float32)\n"
        "    issued in C++, as DDP's gradients and buffers are\n"
        "  rank 1: all_reduce(4 x float32)\n"
        "    issued in C++, as DDP's gradients and buffers are"
    )


def test_meeting_explains_a_hang_and_is_no_verdict() -> None:
    ranks = {0: (call(1), native(2)), 1: (native(1), native(2))}
    assert difference(counts(2, 2), ranks) == ""
    shown = difference(counts(2, 2), ranks, sides=2)
    assert shown.startswith("the ranks first diverge at collective #1 ")


@pytest.mark.parametrize("unlike", [{"numel": 8}, {"dtype": "int32"}], ids=str)
def test_what_cpp_issued_is_compared_with_its_like(unlike: dict[str, Any]) -> None:
    assert differ((native(1),), (native(1),)) == ""
    assert differ((native(1),), (native(1, **unlike),)).startswith("the ranks differ in ")


def test_functional_form_may_meet_the_plain_one() -> None:
    assert differ((call(1),), (native(1, operation="all_gather"),)) == ""
    assert root_cause(counts(1, 1), {0: (call(1),), 1: (native(1),)}).ranks == ()


# ------------------------------------------------------------------ swaps


ALPHA_BETA = "dist.all_reduce(alpha)\ndist.all_reduce(beta)\n"


def at(path: str, *lines: int, operation: str = "all_reduce") -> tuple[CallRecord, ...]:
    return tuple(
        call(n, operation, site=code_line(f"{path}:{line}")) for n, line in enumerate(lines, 1)
    )


def suspect(*ranks: tuple[CallRecord, ...]) -> list[str]:
    return suspicions(counts(*map(len, ranks)), dict(enumerate(ranks)))


def test_swapped_pair() -> None:
    path = source(ALPHA_BETA)
    assert suspect(at(path, 1, 2), at(path, 1, 2), at(path, 2, 1)) == [
        "collectives #1 and #2 of the default group may be swapped: rank 0 calls "
        "dist.all_reduce(alpha) and then dist.all_reduce(beta), rank 2 the other way round "
        f"({path}:1, {path}:2)"
    ]


def test_swap_with_what_cpp_issues() -> None:
    path = source("dist.all_reduce(x)\ndist.all_reduce(y)\n")
    early, late = call(1, site=code_line(f"{path}:1")), call(3, site=code_line(f"{path}:1"))
    one, two = (early, native(2), native(3)), (native(1), native(2), late)
    assert suspect(one, two) == [
        "collectives #1 to #3 of the default group may be swapped: dist.all_reduce(x) comes "
        f"before what C++ issues on rank 0, and after it on rank 1 ({path}:1)"
    ]
    other = (*two[:2], call(3, site=code_line(f"{path}:2")))
    assert suspect(one, other) == suspect(one, one) == suspect(two, two) == []


def test_swap_is_no_difference() -> None:
    path = source(ALPHA_BETA)
    assert differ(at(path, 1, 2), at(path, 2, 1)) == ""


def test_each_swapped_pair_is_reported_once() -> None:
    path = source(ALPHA_BETA)
    shown = suspect(at(path, 1, 2, 1, 1), at(path, 2, 1, 1, 1), at(path, 2, 1, 1, 1))
    assert len(shown) == 1


@pytest.mark.parametrize(
    ("one", "two"), [((1, 2), (1, 2)), ((1, 2), (2, 2)), ((1, 1), (2, 2)), ((1, 2), (3, 1))]
)
def test_what_is_no_swap(one: tuple[int, int], two: tuple[int, int]) -> None:
    path = source(ALPHA_BETA + "dist.all_reduce(gamma)\n")
    assert suspect(at(path, *one), at(path, *two)) == []


def test_same_text_cannot_be_swapped() -> None:
    path = source("dist.all_reduce(x)\ndist.all_reduce(x)\n")
    assert suspect(at(path, 1, 2), at(path, 2, 1)) == []


@pytest.mark.parametrize("operation", ["broadcast", "scatter", "gather", "all_to_all", "barrier"])
def test_operations_with_roles_are_never_suspected(operation: str) -> None:
    path = source(ALPHA_BETA)
    pair = (at(path, 1, 2, operation=operation), at(path, 2, 1, operation=operation))
    assert suspect(*pair) == []


@pytest.mark.parametrize("operation", ["all_gather_into_tensor", "reduce_scatter"])
def test_other_symmetric_operations_are_suspected(operation: str) -> None:
    path = source(ALPHA_BETA)
    pair = (at(path, 1, 2, operation=operation), at(path, 2, 1, operation=operation))
    assert len(suspect(*pair)) == 1


APART = {
    "else": "if rank == src:\n    all_reduce(x)\nelse:\n    all_reduce(zeros)\n",
    "elif": "if rank == src:\n    all_reduce(x)\nelif True:\n    all_reduce(zeros)\n",
    "continue": "for src in r:\n  if rank == src:\n    all_reduce(x)\n    continue\n"
    "  all_reduce(zeros)\n",
    "return": "def f():\n  if rank == src:\n    all_reduce(x)\n    return\n  all_reduce(zeros)\n",
    "else of a loop": "for a in b:\n    pass\nelse:\n  if rank == src:\n    all_reduce(x)\n"
    "  else:\n    all_reduce(zeros)\n",
}
TOGETHER = {
    "one branch": "if rank == src:\n    all_reduce(x)\n    all_reduce(zeros)\nelse:\n    pass\n",
    "one in, one behind": "if a:\n    all_reduce(x)\nelse:\n    pass\nall_reduce(zeros)\n",
    "one in else, one behind": "if a:\n    pass\nelse:\n    all_reduce(x)\nall_reduce(zeros)\n",
    "after a branch that goes on": "if a:\n    all_reduce(x)\nall_reduce(zeros)\n",
    "two ifs": "if a:\n    all_reduce(x)\nelse:\n    pass\nif b:\n    all_reduce(zeros)\nelse:\n"
    "    pass\n",
    "cannot be parsed": "if\nall_reduce(x)\nall_reduce(zeros)\n",
    "null byte": "all_reduce(x)\nall_reduce(zeros)\n\0\n",
}


def crossed(text: str) -> list[str]:
    """Suspicions of two ranks that run two lines of this text in crossed order."""
    path = source(text)
    lines = [n for n, line in enumerate(text.splitlines(), 1) if "all_reduce" in line]
    return suspect(at(path, *lines), at(path, *reversed(lines)))


@pytest.mark.parametrize("text", APART.values(), ids=APART.keys())
def test_branches_of_one_if_are_no_swap(text: str) -> None:
    assert crossed(text) == []


@pytest.mark.parametrize("text", TOGETHER.values(), ids=TOGETHER.keys())
def test_lines_that_one_rank_may_run_both_are_a_swap(text: str) -> None:
    assert len(crossed(text)) == 1


def test_branch_that_has_both_in_crossed_order_is_a_swap() -> None:
    text = "if rank == 0:\n    {0}\n    {1}\nelse:\n    {1}\n    {0}\n"
    path = source(text.format("all_reduce(x)", "all_reduce(y)"))
    assert len(suspect(at(path, 2, 3), at(path, 5, 6))) == 1


def test_lines_of_two_files_are_in_no_branch_of_one_if() -> None:
    one, two = source("if a:\n    f(x)\nelse:\n    f(y)\n"), source("0\n0\n0\nf(y)\n")
    x, y = CodeLine(one, 2), CodeLine(two, 4)
    shown = suspect((call(1, site=x), call(2, site=y)), (call(1, site=y), call(2, site=x)))
    assert len(shown) == 1


@pytest.mark.parametrize("judge", [difference, lambda *known: "".join(suspicions(*known))])
def test_no_collectives_do_not_differ(judge: Callable[..., str]) -> None:
    assert judge({}, {}) == ""
    assert judge({0: (count(0, 0),)}, {0: ()}) == ""
