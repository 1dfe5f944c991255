"""Properties of the metrics' judges: all that is legal passes, any single breach is named."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ddp_conformance.framework.history import Collective, Failed, Measured
from ddp_conformance.lockstep.same_calls import judge_same_calls
from ddp_conformance.metrics import judge as judge_metrics
from ddp_conformance.metrics.history import Expected
from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies import (
    any_record,
    changed,
    floats,
    quick,
    texts,
    without,
    words,
    world_sizes,
)

values = st.lists(floats, min_size=1, max_size=4)


@st.composite
def reports(draw: st.DrawFn) -> list[Any]:
    """Several stages in each of which all ranks report what one process does, to the bit."""
    world_size = draw(world_sizes)
    history: list[Any] = []
    for stage in draw(st.lists(words, min_size=2, max_size=3, unique=True)):
        right = tuple(draw(values))
        near = tuple(value * (1 + draw(st.floats(-9e-6, 9e-6))) for value in right)
        history.append(Expected(0, stage, right))
        history += [Measured(rank, stage, near) for rank in range(world_size)]
    return history


def said(history: list[Any]) -> list[str]:
    return texts(judge_metrics.judge_values(history, 1e-5))


@quick
@given(reports(), st.data())
def test_any_wrong_report_is_named(history: list[Any], data: st.DataObject) -> None:
    assert said(history) == []
    report = any_record(data, history, Measured)
    place = data.draw(st.integers(0, len(report.values) - 1))
    right = report.values[place]
    far = [math.nan, math.inf, -math.inf, right + 1.0 + 1e-3 * abs(right)]
    wrong = data.draw(st.sampled_from([v for v in far if v.hex() != right.hex()]))
    spoiled = (*report.values[:place], wrong, *report.values[place + 1 :])
    where = f"{report.stage}: "
    alone = sum(isinstance(r, Measured) and r.stage == report.stage for r in history) == 1
    for others_values in (spoiled, report.values[1:], (*report.values, 0.0), ()):
        first, *more = said(changed(history, report, values=others_values))
        assert first.startswith(f"{where}rank {report.rank} reports ")
        assert len(more) == (not alone)
        assert all(text.startswith(f"{where}the ranks' reports differ: ") for text in more)


@quick
@given(reports(), st.data())
def test_any_report_that_one_side_lacks_is_named(history: list[Any], data: st.DataObject) -> None:
    report = any_record(data, history, Measured)
    lost = [f"{report.stage}: rank {report.rank} made no report"]
    assert said(without(history, report)) == lost
    right = any_record(data, history, Expected)
    named = said(without(history, right))
    assert len(named) == sum(isinstance(r, Measured) and r.stage == right.stage for r in history)
    for rank, text in enumerate(named):
        assert text == f"{right.stage}: rank {rank} reports what a single process does not"


@quick
@given(reports(), st.data())
def test_reports_that_differ_in_one_bit_are_named(history: list[Any], data: st.DataObject) -> None:
    report = any_record(data, history, Measured)
    value = report.values[0]
    alone = sum(isinstance(r, Measured) and r.stage == report.stage for r in history) == 1
    if alone or not math.isfinite(value):
        return
    beside = -value if value == 0 else math.nextafter(value, 0.0)
    (text,) = said(changed(history, report, values=(beside, *report.values[1:])))
    assert text.startswith(f"{report.stage}: the ranks' reports differ: ")
    assert f"rank {report.rank}: {beside!r}" in text


@quick
@given(reports(), words, st.data())
def test_any_rank_that_raised_is_named(history: list[Any], error: str, data: st.DataObject) -> None:
    rank = any_record(data, history, Measured).rank
    assert said([*history, Failed(rank, error)]) == [f"rank {rank} reports nothing: {error}"]


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
    assert judge_same_calls(history) == ()
    changed = data.draw(st.sampled_from(history))
    history[history.index(changed)] = replace(changed, what="broadcast")
    (found,) = judge_same_calls(history)
    assert found.what.startswith(f"collective {changed.number}: ")
    assert f"rank {changed.rank} broadcast" in found.what


@quick
@given(calls, st.integers(2, 6), st.data())
def test_any_lost_or_doubled_call_is_named(
    names: list[str], world_size: int, data: st.DataObject
) -> None:
    history = [
        Collective(rank, number, name)
        for rank in range(world_size)
        for number, name in enumerate(["first", *names, "no more collectives"])
    ]
    call = any_record(data, history, Collective)
    for spoiled in (without(history, call), [*history, call]):
        (text,) = texts(judge_same_calls(spoiled))
        assert text.startswith("collective ")
        assert f"rank {call.rank} " in text
