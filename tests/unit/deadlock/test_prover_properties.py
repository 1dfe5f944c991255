"""What holds of the proof whatever the ranks answer."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_ddp.deadlock.prover import ProbedRank, prove
from pytest_ddp.protocol.rank_status import SIDE_CHANNEL, BegunMessages, PendingOperation
from tests.unit.standings import (
    WORLD,
    collective,
    count,
    exchange,
    message,
    renamed,
    ring,
    standing,
    stuck,
)

GROUPS = {WORLD: (0, 1, 2, 3), "3": (0, 1), "4": (2, 3), "5": (0, 2, 3)}
OPERATIONS = ("all_reduce", "barrier", "all_gather")
ranks = range(4)


@st.composite
def any_wait(draw: st.DrawFn, rank: int) -> PendingOperation:
    if draw(st.integers(0, 3)) == 0:
        return exchange(draw(st.integers(1, 3)), *ranks)
    group = draw(st.sampled_from([name for name, members in GROUPS.items() if rank in members]))
    members = GROUPS[group]
    number = draw(st.integers(1, 3))
    if draw(st.booleans()):
        peer = draw(st.sampled_from([member for member in members if member != rank]))
        operation = draw(st.sampled_from(["send", "recv"]))
        return message(operation, number, peer, *members, group=group, tag=draw(st.integers(0, 1)))
    operation = draw(st.sampled_from(OPERATIONS))
    numel = draw(st.sampled_from([4, 8]))
    return collective(number, *members, operation=operation, group=group, numel=numel)


@st.composite
def any_stand(draw: st.DrawFn, rank: int) -> ProbedRank:
    waits = tuple(draw(st.lists(any_wait(rank), max_size=2)))
    counts = tuple(
        count(draw(st.integers(0, 3)), *members, group=name)
        for name, members in GROUPS.items()
        if rank in members and draw(st.integers(0, 4))
    )
    others = [other for other in ranks if other != rank]
    sent, received = (
        st.builds(
            *(BegunMessages, st.sampled_from(sorted(GROUPS)), st.sampled_from(peers)),
            *(st.integers(0, 1), st.integers(1, 3)),
        )
        for peers in (others, [-1, *others])
    )
    blocked = bool(waits) and draw(st.integers(0, 4)) > 0
    now = standing(
        *waits,
        counts=counts,
        begun_sends=tuple(draw(st.lists(sent, max_size=2))),
        begun_receives=tuple(draw(st.lists(received, max_size=2))),
        exchanges=draw(st.integers(0, 3)),
        blocked=blocked,
        alone=draw(st.booleans()),
    )
    before = draw(st.sampled_from([now, now, now, replace(now, pulse="moved"), None]))
    return ProbedRank(now, before, ended=draw(st.integers(0, 4)) == 0)


fast = settings(max_examples=60)
any_stands = st.fixed_dictionaries({rank: any_stand(rank) for rank in ranks})


@fast
@given(any_stands, st.permutations(ranks))
def test_verdict_does_not_depend_on_the_names_of_ranks(
    stands: dict[int, ProbedRank], names: list[int]
) -> None:
    naming = dict(enumerate(names))
    here, there = prove(stands), prove(renamed(stands, naming))
    assert (here is None) == (there is None)
    if here is not None and there is not None:
        assert sorted(naming[rank] for rank in here.culprits) == list(there.culprits)
        moved = {replace(line, rank=naming[line.rank], collective="") for line in here.table}
        assert {replace(line, collective="") for line in there.table} == moved
        assert here.sentence.partition(":")[0] == there.sentence.partition(":")[0]


@fast
@given(any_stands, st.permutations(ranks))
def test_verdict_does_not_depend_on_the_order_of_answers(
    stands: dict[int, ProbedRank], order: list[int]
) -> None:
    assert prove({rank: stands[rank] for rank in order}) == prove(stands)


def reached(stands: dict[int, ProbedRank]) -> dict[int, ProbedRank]:
    """Return the ranks, each having done its part of all that anybody waits for."""
    counts = {name: count(3, *members, group=name) for name, members in GROUPS.items()}
    everything = {
        rank: tuple(
            BegunMessages(group, peer, tag, 3)
            for group in GROUPS
            for peer in ranks
            for tag in range(2)
        )
        for rank in ranks
    }
    return {
        rank: replace(
            stand,
            now=replace(
                stand.now,
                counts=tuple(counts[n] for n, members in GROUPS.items() if rank in members),
                begun_sends=everything[rank],
                begun_receives=everything[rank],
                exchanges=3,
                begun=(),
            ),
        )
        for rank, stand in stands.items()
    }


@fast
@given(any_stands)
@example(ring(4))
@example({rank: stuck(exchange(1, *ranks)) for rank in ranks})
def test_nobody_is_accused_where_all_members_came(stands: dict[int, ProbedRank]) -> None:
    assert prove(reached(stands)) is None


@fast
@given(any_stands)
def test_nobody_is_accused_unless_somebody_is_stuck(stands: dict[int, ProbedRank]) -> None:
    awake = {
        rank: replace(stand, now=replace(stand.now, blocked=False))
        for rank, stand in stands.items()
    }
    assert prove(awake) is None


@fast
@given(any_stands, st.sampled_from(ranks))
def test_more_work_accuses_nobody(stands: dict[int, ProbedRank], free: int) -> None:
    """A rank that is found at work instead of stuck can only take accusations away."""
    stand = replace(stands[free], ended=False)
    stuck_ranks = {**stands, free: stand}
    at_work = {**stands, free: replace(stand, now=replace(stand.now, blocked=False))}
    if prove(stuck_ranks) is None:
        assert prove(at_work) is None


@fast
@given(any_stands, st.sampled_from(ranks), st.booleans())
def test_nobody_waits_in_an_exchange_with_a_rank_that_is_gone(
    stands: dict[int, ProbedRank], gone: int, ended: bool
) -> None:
    """The controller ends it: the proof is that of the other waits."""
    left = {**stands, gone: replace(stands[gone], ended=True)}
    if not ended:
        del left[gone]
    without = {rank: _without_exchanges(stand) for rank, stand in left.items()}
    here, there = prove(left), prove(without)
    assert (here and here.culprits) == (there and there.culprits)


def _without_exchanges(stand: ProbedRank) -> ProbedRank:
    waits = tuple(wait for wait in stand.now.waits if wait.group != SIDE_CHANNEL)
    return replace(stand, now=replace(stand.now, waits=waits))


@fast
@given(any_stands, st.sampled_from(ranks))
def test_a_rank_that_came_to_an_exchange_is_accused_by_nobody_there(
    stands: dict[int, ProbedRank], rank: int
) -> None:
    """A rank that is in no exchange itself takes accusations away only, by its part in all
    exchanges."""
    came = replace(stands[rank], now=replace(stands[rank].now, exchanges=3))
    if prove(stands) is None:
        assert prove({**stands, rank: came}) is None
