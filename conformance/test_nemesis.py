"""What must not matter is varied by one seed, and can be had again."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from ddp_conformance import GuaranteeError, Sampler, Violation, nemesis
from ddp_conformance.registry import Check, Guarantee

from conformance.simulated_ranks import SimulatedRanks


class Pauses:
    """Notes how long a pause would be, in place of waiting."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def wait(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    noted = Pauses()
    monkeypatch.setattr("threading.Event", lambda: noted)
    return noted


@pytest.fixture(autouse=True)
def _seed_as_before() -> Iterator[None]:
    before = nemesis.seed()
    yield
    nemesis.use_seed(before)


def stages(pauses: Pauses, check: str, rank: int) -> tuple[float, ...]:
    pauses.seconds.clear()
    with nemesis.at_work(check, rank):
        for _ in range(200):
            nemesis.pause()
    return tuple(pauses.seconds)


def numbers(check: str, rank: int) -> tuple[float, ...]:
    with nemesis.at_work(check, rank):
        return random.random(), float(np.random.random()), float(torch.rand(1))


def test_pauses_are_few_short_and_had_again(pauses: Pauses) -> None:
    first = stages(pauses, "SMP-01", 0)
    assert 10 < len(first) < 45
    assert max(first) <= nemesis.LONGEST
    assert stages(pauses, "SMP-01", 0) == first
    assert len({first, stages(pauses, "SMP-01", 1), stages(pauses, "SMP-02", 0)}) == 3
    nemesis.use_seed(1)
    assert stages(pauses, "SMP-01", 0) != first


def test_random_states_differ_by_rank_and_are_had_again() -> None:
    first = numbers("SMP-01", 0)
    assert numbers("SMP-01", 0) == first
    for one, other in zip(first, numbers("SMP-01", 1), strict=True):
        assert one != other
    nemesis.use_seed(1)
    assert numbers("SMP-01", 0) != first


def test_there_is_no_pause_outside_of_a_check(pauses: Pauses) -> None:
    for _ in range(100):
        nemesis.pause()
    assert pauses.seconds == []


def test_a_failure_names_the_seed() -> None:
    nemesis.use_seed(42)
    guarantee = Guarantee("OWN-01", "Nothing MUST happen.")
    check = Check(guarantee, (Sampler,), lambda subject, ranks: [Violation("it happened")])
    with pytest.raises(GuaranteeError, match=r"to be seen again with --ddp-nemesis-seed=42$"):
        check(Sampler(range), SimulatedRanks.alone())
