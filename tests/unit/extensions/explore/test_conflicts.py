"""Conflicts of hand-made runs, and of random ones against all orders in which they can run."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ddp.extensions.explore.conflicts import Conflict, conflicts
from pytest_ddp.extensions.explore.ranks.accesses import FROM_ANY, Access, Thing, ThingKind
from pytest_ddp.extensions.explore.run_events import Event, RankThread, Threads
from tests.unit.extensions.explore.programs import (
    by_threads,
    changes,
    event,
    orders,
    reads,
    tokens_allow,
)


def found(*events: Event) -> list[Conflict]:
    return conflicts(by_threads(events))


def barrier(at: float, number: int, ranks: Sequence[int] = (0, 1)) -> list[Event]:
    issues = [event(r, at, "barrier", number, gives=[f"{number} {r}"]) for r in ranks]
    takes = [f"{number} {rank}" for rank in ranks]
    return [*issues, *(event(rank, at + 0.1, takes=takes) for rank in ranks)]


LOADS = event(1, 2, "open:a", site="t.py:8", uses=[reads("a", "entry"), reads("a")])
REMOVES = event(0, 3, "remove:a", site="t.py:9", uses=[changes("a", "entry", "removes")])


def test_a_load_and_a_removal_conflict() -> None:
    (conflict,) = found(LOADS, REMOVES)
    assert (conflict.first, conflict.second) == (LOADS, REMOVES)
    assert (conflict.use.verb, conflict.other_use.verb) == ("reads", "removes")
    assert conflict.held == LOADS
    assert conflict.kind == ("t.py:8", "t.py:9")


def test_the_order_of_the_run_decides_which_is_held_and_not_the_kind() -> None:
    (conflict,) = found(LOADS._replace(at=4), REMOVES)
    assert conflict.held == REMOVES
    assert conflict.kind == ("t.py:8", "t.py:9")


def test_a_barrier_between_them_leaves_no_conflict() -> None:
    assert not found(LOADS, *barrier(2.5, 1), REMOVES)
    assert found(*barrier(1, 1), LOADS, REMOVES, *barrier(5, 2))


@pytest.mark.parametrize(
    ("one", "other", "conflict"),
    [
        (reads("a"), reads("a"), False),
        (reads("a"), changes("a"), True),
        (changes("a"), changes("a"), True),
        (changes("a"), changes("b"), False),
        (changes("a"), reads("a", "entry"), False),
        # A listing, and what makes or removes an entry.
        (reads("d", "folder"), changes("d", "folder"), True),
        (reads("d", "folder"), reads("d", "folder"), False),
        (reads("d", "folder"), changes("e", "folder"), False),
        # Two files made in one folder are two entries.
        (changes("d", "folder"), changes("d", "folder"), False),
        # mkdir(exist_ok=True) twice.
        (changes("d", "entry", "makes"), changes("d", "entry", "makes"), True),
        # On the way to a file, and what makes or removes a folder above it.
        (reads("d/e/a", "entry"), changes("d", "entry", "removes"), True),
        (changes("d/e/a", "entry"), changes("d/e", "entry", "makes"), True),
        (changes("d/e/a", "entry"), changes("d/e/b", "entry"), False),
        (changes("d", "entry"), changes("dd/a", "entry"), False),
        (reads("/d/a", "entry"), changes("/d", "entry", "removes"), True),
        # Keys and locks have no rule of their own.
        (changes("k", "key"), reads("k", "key"), True),
        (changes("k", "key", "adds to"), changes("k", "key", "adds to"), True),
        (reads("k", "key"), reads("k", "key"), False),
        (changes("l", "lock", "locks"), changes("l", "lock", "locks"), True),
    ],
)
def test_what_two_uses_are(one: Access, other: Access, *, conflict: bool) -> None:
    first, second = event(0, 1, "p", uses=[one]), event(1, 2, "q", uses=[other])
    assert bool(found(first, second)) == conflict
    assert bool(found(first._replace(at=3), second)) == conflict


def test_a_mailbox_counts_if_some_receive_takes_what_comes_first() -> None:
    sends = [
        event(r, r, "send", uses=[changes("rank 0", "mailbox", "sends to")], site="t.py:3")
        for r in (1, 2)
    ]
    assert not found(*sends)
    receives = event(0, 0, "recv", uses=[changes("rank 0", "mailbox", FROM_ANY)])
    assert [c.kind for c in found(receives, *sends)] == [("t.py:3", "t.py:3")]
    # A message waits for a receive, but which of two threads receives the first one is chance.
    also = receives._replace(thread=RankThread(0, 1), at=1)
    assert ("recv", "recv") in {c.kind for c in found(receives, also, *sends)}
    other = event(0, 0, "recv", uses=[changes("rank 3", "mailbox", FROM_ANY)])
    assert not found(other, *sends)


def test_threads_of_one_rank_conflict() -> None:
    saver = RankThread(0, 1)
    saves = event(saver, 2, "torch.save:a", uses=[changes("a")])
    loads = event(0, 3, "torch.load:a", uses=[reads("a")])
    assert found(saves, loads)
    joined = event(0, 2.5, takes=["end"])
    assert not found(saves, event(saver, 2.1, gives=["end"]), joined, loads)


def test_two_uses_of_one_thread_are_no_conflict() -> None:
    assert not found(event(0, 1, "p", uses=[changes("a")]), event(0, 2, "q", uses=[reads("a")]))


def test_events_that_conflict_in_two_things_do_so_once_in_what_is_named_first() -> None:
    writes = event(0, 1, "open:a", uses=[changes("a"), changes("a", "entry", "makes")])
    before = event(0, 0, "stat:a", uses=[reads("a", "entry")])
    (conflict,) = found(before, writes, LOADS._replace(accesses=LOADS.accesses[::-1]))
    assert conflict.use.thing == conflict.other_use.thing == Thing(ThingKind.FILE, "a")


def test_what_is_no_point_is_tried_at_the_last_point_before_it() -> None:
    begins = event(1, 0, "begin")
    point = event(1, 1, "store.get:k")
    ends = event(1, 2, uses=[reads("k", "key")])
    deletes = event(0, 3, "store.delete_key:k", uses=[changes("k", "key", "deletes")])
    (conflict,) = found(begins, point, ends, deletes)
    assert (conflict.first, conflict.held) == (ends, point)


def test_what_waits_for_a_key_uses_it_when_it_is_set() -> None:
    gets = event(1, 1, "get:k", uses=[reads("k", "key")])
    got = event(1, 3, takes=["key k"])
    sets = event(0, 2, "set:k", uses=[changes("k", "key", "sets")], gives=["key k"])
    assert not found(gets, got, sets)
    # Set twice, it may be either value.
    again = sets._replace(at=2.5, number=2)
    assert [c.held for c in found(gets, got, sets, again)] == [gets]
    early = sets._replace(at=0)
    assert [c.held for c in found(gets, got, early, again)] == [early, gets]
    # A read that does not wait may come before.
    assert found(gets._replace(point="check:k"), sets)


def test_nothing_is_tried_where_no_hold_lets_the_other_come_first() -> None:
    """Held before the barrier, rank 1 keeps rank 0 from its barrier as well."""
    *events, rank_1_ends = barrier(1, 1)
    ends = rank_1_ends._replace(accesses=(reads("a"),))
    writes = event(0, 3, "open:a", uses=[changes("a")])
    assert not found(*events, ends, writes)
    assert not found(ends._replace(takes=()), writes)
    (conflict,) = found(*events, ends, writes._replace(at=1.05))
    assert conflict.first.point == "open:a"


def test_of_a_poll_the_first_and_the_second_round_count() -> None:
    poll = [event(1, at, "stat:a", at, uses=[reads("a", "entry")]) for at in range(1, 9)]
    makes = event(0, 10, "open:a", uses=[changes("a", "entry", "makes")])
    assert [c.held.number for c in found(*poll, makes)] == [1, 2]
    # Between other points as well, but not after communication.
    others = [event(1, e.at + 0.5, "stat:b", e.number, uses=[reads("b", "entry")]) for e in poll]
    assert [c.held.number for c in found(*sorted([*poll, *others]), makes)] == [1, 2]
    sends, receives = event(2, 0, gives=["message"]), event(1, 4.2, takes=["message"])
    with_message = sorted([*poll, receives])
    assert [c.held.number for c in found(sends, *with_message, makes)] == [1, 2, 5, 6]
    assert [c.held.number for c in found(*with_message, makes)] == [1, 2]


def test_a_poll_of_a_counter_is_no_communication() -> None:
    """All add to it, so what one has added orders nothing."""
    poll = [
        event(1, at, "add:n", at, uses=[changes("n", "key", "adds to")], gives=["key n"])
        for at in range(1, 9)
    ]
    adds = event(0, 10, "add:n", uses=[changes("n", "key", "adds to")], gives=["key n"])
    assert [c.held.number for c in found(*poll, adds)] == [1, 2]


def test_clocks_that_differ_a_little_turn_no_order_around() -> None:
    """Rank 1 has read before it sent, and rank 0 wrote after it has received."""
    reading = event(1, 5, "open:a", uses=[reads("a")])
    sends = event(1, 5.1, "send", gives=["m"])
    writes = event(0, 4.9, "open:a", uses=[changes("a")])
    again = event(0, 5.5, "open:a", 2, uses=[changes("a")])
    assert not found(event(0, 4.8, takes=["m"]), writes, again, reading, sends)


FILE_A, FILE_B = Thing(ThingKind.FILE, "a"), Thing(ThingKind.FILE, "b")
FOLDER, ENTRY = Thing(ThingKind.FOLDER, "d"), Thing(ThingKind.ENTRY, "d")
ENTRY_IN_IT = Thing(ThingKind.ENTRY, "d/a")


@st.composite
def programs(draw: st.DrawFn) -> list[Event]:
    """Accesses of up to three threads, some of which give and take a token each."""
    made: list[Event] = []
    for place in range(draw(st.integers(2, 8))):
        use = Access(
            draw(st.sampled_from([FILE_A, FILE_B, FOLDER, ENTRY_IN_IT, ENTRY])),
            changes=draw(st.booleans()),
            verb="uses",
        )
        takes = [str(draw(st.integers(0, place - 1)))] if place and draw(st.booleans()) else []
        thread, site = draw(st.integers(0, 2)), draw(st.sampled_from(["x", "y", "z"]))
        made.append(
            event(
                thread, place, f"p{place}", site=site, uses=[use], gives=[str(place)], takes=takes
            )
        )
    return made


def kinds(threads: Threads) -> set[tuple[tuple[str, str], frozenset[RankThread]]]:
    return {(c.kind, frozenset({c.first.thread, c.second.thread})) for c in conflicts(threads)}


def may_conflict(one: Event, other: Event) -> bool:
    """The rules again, for the things of :func:`programs`."""
    (use,), (other_use,) = one.accesses, other.accesses
    if {use.thing, other_use.thing} == {ENTRY, ENTRY_IN_IT}:
        return use.changes if use.thing == ENTRY else other_use.changes
    if use.thing != other_use.thing:
        return False
    if use.thing == FOLDER:
        return use.changes != other_use.changes
    return use.changes or other_use.changes


@settings(deadline=None)
@given(programs())
def test_conflicts_are_what_can_come_in_both_orders(events: list[Event]) -> None:
    threads = by_threads(events)
    possible = orders(threads, tokens_allow(threads))
    expected = set()
    spots = [(t, e) for t, own in enumerate(threads) for e in range(len(own))]
    for a, b in itertools.combinations(spots, 2):
        one, other = threads[a[0]][a[1]], threads[b[0]][b[1]]
        if a[0] != b[0] and {(a, b), (b, a)} <= possible and may_conflict(one, other):
            kind = tuple(sorted((one.site, other.site)))
            expected.add((kind, frozenset({one.thread, other.thread})))
    assert kinds(threads) == expected


@settings(deadline=None)
@given(programs(), st.integers(0, 7), st.integers(0, 7))
def test_a_token_more_never_adds_a_conflict(events: list[Event], one: int, other: int) -> None:
    giver, taker = sorted((one % len(events), other % len(events)))
    changed = [*events]
    changed[giver] = changed[giver]._replace(gives=(*changed[giver].gives, "more"))
    changed[taker] = changed[taker]._replace(takes=(*changed[taker].takes, "more"))
    assert kinds(by_threads(changed)) <= kinds(by_threads(events))


@settings(deadline=None)
@given(programs())
def test_a_barrier_after_each_access_leaves_no_conflict(events: list[Event]) -> None:
    with_barriers: list[Event] = []
    for number, each in enumerate(events):
        with_barriers += [each._replace(takes=()), *barrier(number + 0.5, number, (0, 1, 2))]
    assert not conflicts(by_threads(with_barriers))


@settings(deadline=None)
@given(programs(), st.permutations(range(3)))
def test_in_which_order_threads_are_recorded_is_nothing_to_conflicts(
    events: list[Event], places: list[int]
) -> None:
    threads = by_threads([each._replace(at=each.at // 3) for each in events])
    moved = tuple(threads[place] for place in places if place < len(threads))
    assert conflicts(moved) == conflicts(threads)


def test_ten_thousand_uses_of_one_file_are_no_millions_of_pairs() -> None:
    events = [
        event(at % 8, at, f"p{at}", uses=[changes("a")], site="t.py:3") for at in range(10_000)
    ]
    begin = time.process_time()
    assert len({c.first for c in found(*events)}) == 9_999
    assert time.process_time() - begin < 3
