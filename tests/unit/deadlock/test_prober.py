"""When ranks are asked where they stand, and which answers make a proof."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pytest_ddp.deadlock import prober
from pytest_ddp.deadlock.prober import Prober
from pytest_ddp.launch.rank_process import RankProcess
from pytest_ddp.protocol.channel import Channel
from pytest_ddp.protocol.rank_status import Probe, RankStatus
from tests.unit.ends import WORLD
from tests.unit.standings import collective, count, standing

TEST = 1


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every probe is due when it is asked for."""
    for name in ("_QUIET", "_INTERVAL"):
        monkeypatch.setattr(prober, name, 0.0)


class Rank:
    """A rank's process as the controller has it, and the far end of its channel."""

    def __init__(self, number: int) -> None:
        near, far = Channel.pair()
        far.setblocking(False)  # what has not come is not waited for
        self.far = Channel(far)
        self.process = RankProcess(number, WORLD, number, near)

    def asked(self) -> list[int]:
        """Numbers of the probes that came."""
        messages = [message for message, _ in self.far.receive_available()]
        assert all(isinstance(message, Probe) for message in messages)
        return [message.number for message in messages if isinstance(message, Probe)]

    def close(self) -> None:
        self.process.close()
        self.far.close()


@pytest.fixture
def ranks() -> Iterator[list[Rank]]:
    made = [Rank(number) for number in range(2)]
    yield made
    for rank in made:
        rank.close()


@pytest.fixture
def asking(ranks: list[Rank]) -> Prober:
    return Prober(TEST, [rank.process for rank in ranks], math.inf)


WAITS = standing(collective(1, 0, 1))
ENDED = standing(counts=(count(0, 0, 1),))


def answer(asking: Prober, answers: dict[int, RankStatus], number: int, *ended: int) -> object:
    """What the prober makes of the last of these answers to a probe."""
    found: object = None
    for rank, made in answers.items():
        assert found is None
        found = asking.take(rank, replace(made, number=number), rank in ended)
    return found


def test_every_living_rank_is_asked_with_the_same_number(asking: Prober, ranks: list[Rank]) -> None:
    asking.probe()
    asking.probe()
    ranks[1].process.returncode = -9
    asking.probe()
    assert [rank.asked() for rank in ranks] == [[1, 2, 3], [1, 2]]


def test_nobody_is_asked_before_it_is_due(
    ranks: list[Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prober, "_QUIET", 60.0)
    asking = Prober(TEST, [rank.process for rank in ranks], math.inf)
    assert 0 < asking.due_in() <= 60.0
    asking.probe()
    assert ranks[0].asked() == []


def test_news_of_a_rank_put_the_next_probe_off(
    asking: Prober, ranks: list[Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asking.due_in() == 0.0
    monkeypatch.setattr(prober, "_QUIET", 60.0)
    asking.hear()
    asking.probe()
    assert asking.due_in() > 50.0
    assert ranks[0].asked() == []


def test_a_wait_for_a_rank_that_has_ended_is_proved_by_two_answers(asking: Prober) -> None:
    asking.probe()
    assert answer(asking, {0: WAITS, 1: ENDED}, 1, 1) is None
    asking.probe()
    assert answer(asking, {0: WAITS, 1: ENDED}, 2, 1) is not None


def test_a_rank_that_moved_between_the_answers_proves_nothing(asking: Prober) -> None:
    asking.probe()
    assert answer(asking, {0: WAITS, 1: ENDED}, 1, 1) is None
    asking.probe()
    assert answer(asking, {0: replace(WAITS, pulse="moved"), 1: ENDED}, 2, 1) is None


def test_an_answer_of_one_rank_alone_proves_nothing(asking: Prober) -> None:
    asking.probe()
    answer(asking, {0: WAITS, 1: ENDED}, 1, 1)
    asking.probe()
    assert answer(asking, {0: WAITS}, 2, 1) is None


def test_an_answer_to_an_earlier_probe_is_no_answer(asking: Prober) -> None:
    asking.probe()
    answer(asking, {0: WAITS, 1: ENDED}, 1, 1)
    asking.probe()
    assert answer(asking, {0: WAITS, 1: ENDED}, 1, 1) is None
    assert asking.counts() == {}


def test_a_rank_that_ended_after_its_answer_is_not_taken_to_have_ended(asking: Prober) -> None:
    for number in (1, 2):
        asking.probe()
        assert answer(asking, {1: ENDED, 0: WAITS}, number) is None


def test_counts_are_those_of_the_last_answers(asking: Prober) -> None:
    asking.probe()
    answer(asking, {0: WAITS}, 1)
    assert asking.counts() == {0: WAITS.counts}
