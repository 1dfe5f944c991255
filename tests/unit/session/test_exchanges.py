"""The side channel: who is answered, when, and with what."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ddp.launch.rank_process import RankProcess
from pytest_ddp.protocol.channel import Channel
from pytest_ddp.protocol.messages import Exchange, ExchangeReply, FixtureOperation, ToRank
from pytest_ddp.session.exchanges import Exchanges
from tests.unit.ends import WORLD

BARRIER, GATHER, BROADCAST = (
    FixtureOperation.BARRIER,
    FixtureOperation.GATHER,
    FixtureOperation.BROADCAST,
)


class FakeProcess(RankProcess):
    """A rank's process without a process: keeps what it is sent."""

    def __init__(self, rank: int) -> None:
        channel, self.theirs = Channel.pair()
        super().__init__(rank + 1, WORLD, rank, channel)
        self.received: list[ToRank] = []

    def send(self, message: ToRank, descriptors: tuple[int, ...] = ()) -> None:
        assert not descriptors
        self.received.append(message)

    def close(self) -> None:
        self.theirs.close()
        super().close()


class World:
    """The ranks of a test and what is between them."""

    def __init__(self, size: int) -> None:
        self.processes = [FakeProcess(rank) for rank in range(size)]
        self.exchanges = Exchanges(list(self.processes))

    def arrive(
        self,
        rank: int,
        operation: FixtureOperation = BARRIER,
        number: int = 1,
        source: int | None = None,
        payload: str = "",
    ) -> None:
        exchange = Exchange(1, number, operation, source, payload)
        self.exchanges.arrive(self.processes[rank], exchange)

    def leave(self, rank: int, how: str = "done") -> None:
        self.exchanges.leave(self.processes[rank], how)

    def received(self, rank: int) -> list[ToRank]:
        return self.processes[rank].received

    def error(self, rank: int) -> str:
        """The error that is the only thing that a rank was sent."""
        (reply,) = self.received(rank)
        assert isinstance(reply, ExchangeReply)
        assert reply.error is not None
        assert reply.payloads == ()
        return reply.error


@pytest.fixture
def world() -> Iterator[Callable[[int], World]]:
    made: list[World] = []

    def make(size: int) -> World:
        made.append(World(size))
        return made[-1]

    yield make
    for each in made:
        for process in each.processes:
            process.close()


Make = Callable[[int], World]


def test_nobody_is_answered_before_the_last_has_come(world: Make) -> None:
    three = world(3)
    three.arrive(0)
    three.arrive(2)
    assert [three.received(rank) for rank in range(3)] == [[], [], []]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_payloads_are_in_the_order_of_ranks(world: Make, order: Sequence[int]) -> None:
    three = world(3)
    for rank in order:
        three.arrive(rank, GATHER, payload=f"of {rank}")
    reply = ExchangeReply(1, ("of 0", "of 1", "of 2"), None)
    assert [three.received(rank) for rank in range(3)] == [[reply]] * 3


def test_one_rank_alone_is_answered_at_once(world: Make) -> None:
    one = world(1)
    one.arrive(0, BROADCAST, source=0, payload="x")
    assert one.received(0) == [ExchangeReply(1, ("x",), None)]


def test_operations_follow_one_another(world: Make) -> None:
    two = world(2)
    for number in (1, 2):
        for rank in range(2):
            two.arrive(rank, GATHER, number, payload=f"{number}{rank}")
    assert two.received(0) == [
        ExchangeReply(1, ("10", "11"), None),
        ExchangeReply(2, ("20", "21"), None),
    ]


# ------------------------------------------------------------------ ranks that differ


def test_different_operations_are_reported_as_soon_as_two_have_come(world: Make) -> None:
    three = world(3)
    three.arrive(2, BARRIER)
    three.arrive(0, BROADCAST, source=1)
    assert three.error(0) == three.error(2)
    assert three.error(0) == (
        "the ranks are in different operations: rank 0 is in ddp.broadcast(source=1) #1 of the "
        "test, rank 2 is in ddp.barrier() #1 of the test"
    )
    assert three.received(1) == []


@pytest.mark.parametrize(
    ("number", "source"), [(2, 0), (1, 1)], ids=["another number", "another source"]
)
def test_different_numbers_or_sources(world: Make, number: int, source: int) -> None:
    two = world(2)
    two.arrive(0, BROADCAST, source=0)
    two.arrive(1, BROADCAST, number, source)
    assert f"rank 1 is in ddp.broadcast(source={source}) #{number}" in two.error(1)


def test_reply_carries_the_number_that_its_rank_waits_for(world: Make) -> None:
    two = world(2)
    two.arrive(0, number=1)
    two.arrive(1, number=2)
    numbers = [
        reply.number for r in range(2) for reply in two.received(r) if hasattr(reply, "number")
    ]
    assert numbers == [1, 2]


def test_third_rank_is_answered_once_the_others_have_left(world: Make) -> None:
    three = world(3)
    three.arrive(0, BARRIER)
    three.arrive(1, GATHER)
    three.arrive(2, BARRIER)
    assert three.received(2) == []
    three.leave(0)
    assert "rank 0 has ended the test" in three.error(2)


# ------------------------------------------------------------------ ranks that leave


def test_rank_that_left_before(world: Make) -> None:
    two = world(2)
    two.leave(1)
    two.arrive(0)
    assert two.error(0) == (
        "ddp.barrier() #1 of the test can never complete: rank 1 has ended the test"
    )


@pytest.mark.parametrize("how", ["exited", "stopped", "not begun"])
def test_rank_that_is_lost_while_the_others_wait(world: Make, how: str) -> None:
    three = world(3)
    three.arrive(0, GATHER)
    three.arrive(1, GATHER)
    three.leave(2, how)
    assert three.error(0) == three.error(1)
    assert three.error(0).endswith(f"rank 2 has {how}")


def test_rank_that_dies_while_it_waits_is_not_answered(world: Make) -> None:
    two = world(2)
    two.arrive(1)
    two.leave(1, "exited")
    assert two.received(1) == []
    two.arrive(0)
    assert "rank 1 has exited" in two.error(0)


def test_leaving_after_a_complete_operation_disturbs_nobody(world: Make) -> None:
    two = world(2)
    two.arrive(0)
    two.arrive(1)
    two.leave(0)
    assert two.received(1) == [ExchangeReply(1, ("", ""), None)]


def test_all_who_left_are_named_in_the_order_of_ranks(world: Make) -> None:
    many = world(12)
    for rank in (10, 2, 9):
        many.leave(rank)
    many.arrive(0)
    assert many.error(0).endswith(
        "rank 2 has ended the test, rank 9 has ended the test, rank 10 has ended the test"
    )


def test_ranks_that_differ_are_named_in_the_order_of_ranks(world: Make) -> None:
    many = world(12)
    many.arrive(10)
    many.arrive(2, GATHER)
    assert many.error(2).index("rank 2 ") < many.error(2).index("rank 10 ")


# ------------------------------------------------------------------ what always holds


@settings(max_examples=50)
@given(
    st.permutations(range(4)),
    st.lists(st.sampled_from(["barrier", "gather", "left"]), min_size=4, max_size=4),
)
def test_everyone_who_arrives_is_answered_once_all_have_come_or_left(
    order: list[int], what: list[str]
) -> None:
    four = World(4)
    for rank in order:
        if what[rank] == "left":
            four.leave(rank)
        else:
            four.arrive(rank, FixtureOperation(what[rank]))
    for rank in order:  # whoever has an answer goes on and ends
        if four.received(rank):
            four.leave(rank)
    waiting = [rank for rank in range(4) if what[rank] != "left"]
    assert [len(four.received(rank)) for rank in waiting] == [1] * len(waiting)
    complete = set(what) in ({"barrier"}, {"gather"})
    replies = [reply for rank in waiting for reply in four.received(rank)]
    assert all(isinstance(r, ExchangeReply) and (r.error is None) == complete for r in replies)
    for process in four.processes:
        process.close()
