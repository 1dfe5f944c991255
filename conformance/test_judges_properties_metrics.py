"""Properties of the metrics' judges: all that is legal passes, any single breach is named."""

from __future__ import annotations

from dataclasses import replace

from ddp_conformance.checks import judge_metrics
from ddp_conformance.history import Collective, Expected, Measured, Record
from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies import quick, world_sizes

values = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=4)


@quick
@given(values, world_sizes, st.data())
def test_equal_reports_pass_and_any_other_one_is_named(
    right: list[float], world_size: int, data: st.DataObject
) -> None:
    history: list[Record] = [Expected(0, "epoch", tuple(right))]
    history += [Measured(rank, "epoch", tuple(right)) for rank in range(world_size)]
    assert judge_metrics.judge_values(history, 1e-5) == ()
    rank = data.draw(st.integers(0, world_size - 1))
    wrong = list(right)
    wrong[data.draw(st.integers(0, len(right) - 1))] += 1.0
    history[1 + rank] = Measured(rank, "epoch", tuple(wrong))
    texts = [violation.what for violation in judge_metrics.judge_values(history, 1e-5)]
    assert texts[0].startswith(f"epoch: rank {rank} reports ")
    assert len(texts) == (1 if world_size == 1 else 2)


calls = st.lists(st.sampled_from(["sum", "gather", "barrier"]), max_size=6)


@quick
@given(calls, st.integers(2, 5), st.data())
def test_same_calls_pass_and_the_first_other_one_is_named(
    names: list[str], world_size: int, data: st.DataObject
) -> None:
    history = [
        Collective(rank, number, name)
        for rank in range(world_size)
        for number, name in enumerate([*names, "no more collectives"])
    ]
    assert judge_metrics.judge_same_calls(history) == ()
    changed = data.draw(st.sampled_from(history))
    history[history.index(changed)] = replace(changed, what="broadcast")
    (found,) = judge_metrics.judge_same_calls(history)
    assert found.what.startswith(f"collective {changed.number}: ")
    assert f"rank {changed.rank} broadcast" in found.what
