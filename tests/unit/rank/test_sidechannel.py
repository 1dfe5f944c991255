"""What a rank is shown to wait for in the operations of the ``ddp`` fixture."""

from __future__ import annotations

import threading

import pytest

from pytest_ddp.protocol.messages import FixtureOperation
from pytest_ddp.protocol.rank_status import SIDE_CHANNEL
from pytest_ddp.rank.groups.side_channel import SideChannel

HERE = threading.get_ident()


@pytest.fixture
def side_channel() -> SideChannel:
    made = SideChannel()
    made.begin(3)
    return made


@pytest.mark.parametrize("operation", FixtureOperation)
def test_who_arrives_waits_for_all_ranks(
    side_channel: SideChannel, operation: FixtureOperation
) -> None:
    assert side_channel.wait(HERE) is None
    side_channel.arrive(operation)
    wait = side_channel.wait(HERE)
    assert wait is not None
    assert (wait.group, wait.members, wait.number) == (SIDE_CHANNEL, (0, 1, 2), 1)
    assert wait.operation == f"ddp.{operation.value}"
    assert side_channel.exchanges == 1


def test_the_answer_ends_the_wait_and_not_the_count(side_channel: SideChannel) -> None:
    side_channel.arrive(FixtureOperation.GATHER)
    side_channel.leave(1)
    assert side_channel.wait(HERE) is None
    assert side_channel.exchanges == 1


def test_an_answer_to_an_earlier_exchange_ends_no_wait(side_channel: SideChannel) -> None:
    side_channel.arrive(FixtureOperation.GATHER)
    side_channel.leave(1)
    assert side_channel.arrive(FixtureOperation.GATHER) == 2
    side_channel.leave(1)
    assert side_channel.wait(HERE) is not None


def test_other_threads_wait_for_nothing(side_channel: SideChannel) -> None:
    side_channel.arrive(FixtureOperation.BARRIER)
    assert side_channel.wait(HERE + 1) is None


def test_a_test_begins_anew(side_channel: SideChannel) -> None:
    side_channel.arrive(FixtureOperation.BARRIER)
    side_channel.begin(2)
    assert (side_channel.exchanges, side_channel.wait(HERE)) == (0, None)
    side_channel.arrive(FixtureOperation.BARRIER)
    wait = side_channel.wait(HERE)
    assert wait is not None
    assert wait.members == (0, 1)
