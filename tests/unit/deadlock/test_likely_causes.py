"""What a proved hang suggests: only what the ranks' answers show, and else nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddp.deadlock.likely_causes import with_hint
from pytest_ddp.deadlock.prover import ProbedRank
from pytest_ddp.protocol.rank_status import PendingOperation
from tests.unit.standings import code_line, collective, count, ended, pair, proof, stuck


def hint(probed: dict[int, ProbedRank]) -> str:
    return with_hint(proof(probed), probed).hint


def passed(state: ProbedRank, backwards: int, *, inside: bool = False) -> ProbedRank:
    return replace(state, now=replace(state.now, backwards=backwards, in_backward=inside))


def after(state: ProbedRank, *done: PendingOperation) -> ProbedRank:
    return replace(state, now=replace(state.now, done=done))


def at_line(number: int, line: int) -> PendingOperation:
    return replace(pair(number), site=code_line(f"/src/test_made.py:{line}"))


IN_THIRD = passed(stuck(pair(3)), 3, inside=True)


@pytest.mark.parametrize(
    ("made", "words"),
    [(2, "rank 1 made 2 backward passes"), (1, "rank 1 made 1 backward pass"),
     (0, "rank 1 made no backward pass")],
)  # fmt: skip
def test_an_ended_rank_made_fewer_backward_passes(made: int, words: str) -> None:
    found = hint({0: IN_THIRD, 1: passed(ended(count(2, 0, 1)), made)})
    assert found == (
        f"{words}, and has ended; rank 0 is in its third: fewer batches on rank 1, or did rank 1 "
        "stop early?"
    )


@pytest.mark.parametrize("made", [3, 4])
def test_as_many_passes_are_no_hint(made: int) -> None:
    assert "backward" not in hint({0: IN_THIRD, 1: passed(ended(count(2, 0, 1)), made)})


def test_of_one_collective_of_unlike_sizes_no_pass_has_issued_less() -> None:
    native = replace(pair(1), site=None)
    waits = passed(stuck(native), 1, inside=True)
    other = after(passed(ended(count(1, 0, 1)), 1), replace(native, numel=8))
    assert hint({0: waits, 1: other}) == ""


def test_a_wait_outside_of_a_pass_is_no_matter_of_passes() -> None:
    waits = passed(stuck(pair(3)), 3)
    assert "backward" not in hint({0: waits, 1: passed(ended(count(2, 0, 1)), 2)})


def test_a_rank_in_another_collective_may_have_fewer_batches_or_a_call_of_its_own() -> None:
    metric = passed(stuck(replace(pair(3), recorded_as="broadcast", operation="broadcast")), 2)
    assert hint({0: IN_THIRD, 1: metric}) == (
        "rank 1 made 2 backward passes; rank 0 is in its third: fewer batches on rank 1, or a "
        "collective for rank 1 alone?"
    )


def test_ranks_with_unlike_numbers_are_not_summed_up() -> None:
    three = collective(3, 0, 1, 2)
    probed = {
        0: passed(stuck(three), 3, inside=True),
        1: passed(ended(count(2, 0, 1, 2)), 2),
        2: passed(ended(count(2, 0, 1, 2)), 1),
    }
    assert "backward" not in hint(probed)


def test_an_ended_rank_was_at_this_line_before() -> None:
    other = after(ended(count(2, 0, 1)), at_line(1, 20), at_line(2, 20))
    assert hint({0: stuck(at_line(3, 20)), 1: other}) == (
        "rank 1 called all_reduce at /src/test_made.py:20 for the last time as #2, rank 0 again as "
        "#3: did rank 1 leave a loop earlier?"
    )


def test_ranks_in_the_same_collective_of_unlike_sizes_have_no_loop() -> None:
    other = after(ended(count(2, 0, 1)), at_line(1, 20), replace(at_line(2, 20), numel=8))
    assert hint({0: stuck(at_line(2, 20)), 1: other}) == ""


def test_an_ended_rank_was_never_at_this_line() -> None:
    other = after(ended(count(1, 0, 1)), at_line(1, 20))
    assert hint({0: stuck(at_line(2, 30)), 1: other}) == (
        "rank 1 issued no collective on this group at /src/test_made.py:30: is it in a branch for "
        "some ranks only?"
    )


def test_what_a_rank_no_longer_reports_is_not_denied() -> None:
    other = after(ended(count(20, 0, 1)), *(at_line(number, 20) for number in range(5, 21)))
    assert hint({0: stuck(at_line(21, 30)), 1: other}) == ""


def test_a_collective_of_cpp_has_no_line() -> None:
    native = replace(pair(2), site=None)
    assert (
        hint({0: stuck(native), 1: after(ended(count(1, 0, 1)), replace(pair(1), site=None))}) == ""
    )
