"""The order of events against all orders in which small programs can run."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ddp.extensions.explore.order import Order, Spot
from pytest_ddp.extensions.explore.run_events import Event, Events, Threads
from tests.unit.extensions.explore.programs import (
    NEEDED,
    Pair,
    Step,
    as_torch_runs,
    by_threads,
    event,
    orders,
    record,
    tokens_allow,
)


def predicted(threads: Sequence[Events]) -> set[Pair]:
    """What comes before what on every schedule, as predicted."""
    order = Order(threads)
    spots = [Spot(t, e) for t, events in enumerate(threads) for e in range(len(events))]
    return {(a, b) for a, b in itertools.product(spots, repeat=2) if order.before(a, b)}


def always(threads: Sequence[Events], possible: set[Pair]) -> set[Pair]:
    """What comes before what on every schedule, of what is possible."""
    return {(a, b) for a, b in possible if (b, a) not in possible}


@st.composite
def programs(draw: st.DrawFn) -> Threads:
    """Up to four threads; tokens are taken after they were given, in the order of drawing."""
    made: list[Event] = []
    for place in range(draw(st.integers(2, 9))):
        takes = draw(st.lists(st.integers(0, place - 1), max_size=2)) if place else []
        thread = draw(st.integers(0, 3))
        made.append(event(thread, place, gives=[str(place)], takes=[str(giver) for giver in takes]))
    return by_threads(made)


@settings(deadline=None)
@given(programs())
def test_events_are_unordered_exactly_if_both_orders_can_come(threads: Threads) -> None:
    assert predicted(threads) == always(threads, orders(threads, tokens_allow(threads)))


@settings(deadline=None)
@given(programs(), st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=3))
def test_what_has_several_givers_orders_nothing_that_can_come_otherwise(
    threads: Threads, more: list[tuple[int, int]]
) -> None:
    spots = [(t, e) for t, events in enumerate(threads) for e in range(len(events))]
    changed = [list(events) for events in threads]
    for place, token in more:
        thread, number = spots[place % len(spots)]
        each = changed[thread][number]
        changed[thread][number] = each._replace(gives=(*each.gives, str(token)))
    result = tuple(map(tuple, changed))
    possible = orders(result, tokens_allow(result))
    assert all((b, a) not in possible for a, b in predicted(result))


@settings(deadline=None)
@given(programs(), st.integers(0, 8), st.integers(0, 8))
def test_a_token_of_a_cycle_adds_no_order(threads: Threads, place: int, token: int) -> None:
    spots = [Spot(t, e) for t, events in enumerate(threads) for e in range(len(events))]
    taker, giver = spots[place % len(spots)], spots[token % len(spots)]
    changed = [list(events) for events in threads]
    taking, giving = changed[taker.thread][taker.event], threads[giver.thread][giver.event]
    changed[taker.thread][taker.event] = taking._replace(takes=(*taking.takes, *giving.gives))
    result = tuple(map(tuple, changed))
    found, known = predicted(result), predicted(threads)
    if giver == taker or (taker, giver) in known:
        assert found <= known
    else:
        assert found == always(result, orders(result, tokens_allow(result)))


@st.composite
def torch_programs(draw: st.DrawFn) -> list[Step]:
    """Three ranks that communicate in random ways; what waits does so in an order that can be."""
    steps: list[Step] = []
    pending: list[Step] = []
    for number in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from([*NEEDED, "message", "key", "thread"]))
        if kind in NEEDED:
            for rank in draw(st.permutations(range(3))):
                steps.append(Step(rank, "issue", kind, number))
                pending.append(Step(rank, "wait", kind, number))
        else:
            giver, taker = draw(st.permutations(range(3)))[:2]
            does = {
                "message": ("send", "receive"),
                "key": ("set", "get"),
                "thread": ("end", "join"),
            }
            steps.append(Step(giver, does[kind][0], kind, number))
            pending.append(Step(taker, does[kind][1], kind, number))
        # An asynchronous operation is waited for later, or by nobody.
        for step in draw(st.permutations(pending)):
            if draw(st.booleans()):
                pending.remove(step)
                steps.append(step)
        steps.append(Step(draw(st.integers(0, 2)), "use", "", number))
    return steps


@settings(deadline=None)
@given(torch_programs())
def test_records_of_programs_order_what_torch_orders(steps: list[Step]) -> None:
    threads = record(steps)
    possible = orders(threads, as_torch_runs(steps))
    assert predicted(threads) == always(threads, possible)


def ordered(steps: Sequence[Step], one: Step, other: Step) -> bool:
    threads = sorted({step.thread for step in steps})
    own = [[step for step in steps if step.thread == thread] for thread in threads]

    def spot(step: Step) -> Spot:
        place = threads.index(step.thread)
        return Spot(place, own[place].index(step))

    return Order(record(steps)).before(spot(one), spot(other))


def collective(kind: str, ranks: Sequence[int] = (0, 1, 2), number: int = 1) -> list[Step]:
    issues = [Step(rank, "issue", kind, number) for rank in ranks]
    return [*issues, *(Step(rank, "wait", kind, number) for rank in ranks)]


A, B, C = Step(0, "use", "a"), Step(1, "use", "b"), Step(2, "use", "c")


@pytest.mark.parametrize(
    ("kind", "before", "after", "is_ordered"),
    [
        ("barrier", A, B, True),
        ("barrier", B, A, True),
        ("broadcast", A, B, True),
        ("broadcast", B, A, False),
        ("broadcast", B, C, False),
        ("scatter", A, C, True),
        ("scatter", B, A, False),
        ("gather", B, A, True),
        ("gather", A, B, False),
        ("gather", B, C, False),
    ],
)
def test_a_collective_orders_what_depends_on_it(
    kind: str, before: Step, after: Step, is_ordered: bool
) -> None:
    steps = [before, *collective(kind), after]
    assert ordered(steps, before, after) == is_ordered


def test_an_asynchronous_collective_orders_nothing_before_its_wait() -> None:
    *issues, wait_0, wait_1, _ = collective("all_reduce")
    early, late = B._replace(number=1), B._replace(number=2)
    steps = [A, *issues, early, wait_1, late, wait_0]
    assert not ordered(steps, A, early)
    assert ordered(steps, A, late)


def test_a_collective_that_nobody_waits_for_orders_nothing() -> None:
    issues = collective("all_reduce")[:3]
    assert not ordered([A, *issues, B], A, B)


def test_what_comes_after_the_issue_is_not_before_the_wait_of_others() -> None:
    issues, waits = collective("barrier")[:3], collective("barrier")[3:]
    between = A._replace(number=2)
    assert not ordered([*issues, between, *waits, B], between, B)


def test_a_barrier_of_some_ranks_orders_only_those() -> None:
    steps = [A, C, *collective("barrier", (0, 1)), B]
    assert ordered(steps, A, B)
    assert not ordered(steps, C, B)


def test_order_goes_through_a_third_rank() -> None:
    message = [Step(0, "send", "m", 1), Step(1, "receive", "m", 1)]
    next_ = [Step(1, "send", "m", 2), Step(2, "receive", "m", 2)]
    assert ordered([A, *message, *next_, C], A, C)
    assert not ordered([A, *next_, *message, C], A, C)


def test_ten_thousand_events_take_less_than_a_second() -> None:
    """The events are collectives of all threads, whose order goes through everybody."""
    made: list[Event] = []
    for at in range(1_250):
        names = [f"{at} {thread}" for thread in range(8)]
        if at % 2:
            made += [event(thread, at, gives=[names[thread]]) for thread in range(8)]
        else:
            names = [f"{at - 1} {thread}" for thread in range(8)]
            made += [event(thread, at, takes=names) for thread in range(8)]
    threads = by_threads(made)
    begin = time.process_time()
    Order(threads)
    assert time.process_time() - begin < 1


@pytest.mark.parametrize("takes", [["nobody"], ["own"], ["own", "nobody", "late"], ["two"]])
def test_a_token_of_no_earlier_event_orders_nothing(takes: list[str]) -> None:
    threads = by_threads(
        [
            event(0, 1, gives=["two"]),
            event(1, 2, gives=["own"], takes=takes),
            event(1, 3, gives=["late"]),
            event(2, 4, gives=["two"]),
        ]
    )
    order = Order(threads)
    assert not any(order.before(Spot(a, 0), Spot(b, 0)) for a in range(3) for b in range(3))
    assert order.before(Spot(1, 0), Spot(1, 1))


def test_what_comes_before_a_cycle_is_ordered_still() -> None:
    threads = by_threads(
        [
            event(0, 1, gives=["begin"]),
            event(1, 2, takes=["begin"]),
            event(1, 3, gives=["a"], takes=["b"]),
            event(2, 4, gives=["b"], takes=["a"]),
            event(2, 5, takes=["begin"]),
        ]
    )
    order = Order(threads)
    assert order.before(Spot(0, 0), Spot(1, 1))
    assert order.before(Spot(0, 0), Spot(2, 1))
    assert not order.before(Spot(0, 0), Spot(2, 0))
    assert not order.before(Spot(1, 1), Spot(2, 0))
    assert not order.before(Spot(2, 0), Spot(1, 1))
