"""What must not matter is varied by one seed, and can be had again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ddp_conformance import Case, GuaranteeError, Leg, Sampler, TrainLoop, Violation
from ddp_conformance.determinism.loops import run_leg
from ddp_conformance.framework import nemesis
from ddp_conformance.framework.mutants import all_mutants
from ddp_conformance.framework.registry import Check, Guarantee, checks_for
from ddp_conformance.launched.history import Ended, Happened
from ddp_conformance.launched.journal import Journal
from ddp_conformance.launched.order import Named, Order, Work
from ddp_conformance.launched.start.launch import Limits, launch
from ddp_conformance.simulation import simulate

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
    with pytest.raises(GuaranteeError, match=r"  seen with --ddp-nemesis-seed=42\n"):
        check(Sampler(range), SimulatedRanks.alone())


# ---------------------------------------------------------------- the same seed, the same history


def assert_follows_from_the_seed(history: Callable[[], Any]) -> None:
    seen = []
    for seed in (3, 3, 4):
        nemesis.use_seed(seed)
        random.random()  # nothing may hang on what came before
        seen.append(history())
    assert seen[0], "nothing was seen"
    assert seen[0] == seen[1]
    assert seen[0] != seen[2]


def two_steps(case: Case, leg: Leg, watch: Any) -> None:
    for step in range(2):
        watch.step(0, [step])


def test_loops_replay(tmp_path: Path) -> None:
    case, leg = Case(4, 0, 1, tmp_path), Leg(1)
    subject = TrainLoop(two_steps)
    assert_follows_from_the_seed(lambda: run_leg(subject, case, "whole", leg, 1))
    nemesis.use_seed(3)
    assert run_leg(subject, case, "whole", leg, 1) != run_leg(subject, case, "whole", leg, 2)


DRAWN: list[float] = []


def drawing(case: Case) -> list[int]:
    DRAWN.extend((random.random(), float(np.random.random()), float(torch.rand(1))))
    return [case.rank]


def simulated() -> list[float]:
    DRAWN.clear()
    simulate(Sampler(drawing, {"exact"}), 4, sizes=(4,))
    assert len(set(DRAWN)) == len(DRAWN) == 12, "every rank draws its own"
    return [*DRAWN]


def test_simulated_ranks_replay() -> None:
    assert_follows_from_the_seed(simulated)


def draw(order: Order, journal: Journal) -> None:
    drawn = (random.random(), float(np.random.random()), float(torch.rand(1)))
    journal.add(Happened(order.rank, "returned", repr(drawn)))


@pytest.mark.ddp(world_size=1, init=False)
def test_launched_ranks_replay(tmp_path: Path) -> None:
    folders = iter(range(3))
    work = Work(Named.of(draw), Named.of(draw))

    def launched() -> list[str]:
        directory = tmp_path / str(next(folders))
        directory.mkdir()
        history = launch(work, 2, directory, Limits(100.0, 20.0))
        assert [end.code for end in history if isinstance(end, Ended)] == [0, 0]
        drawn = [seen.site for seen in history if isinstance(seen, Happened)]
        assert len(set(drawn)) == 2, "every rank draws its own"
        return drawn

    assert_follows_from_the_seed(launched)


@pytest.mark.ddp(world_size=2)
def test_runs_of_the_trainer_replay() -> None:
    (subject,) = [m.subject for m in all_mutants() if m.subject.name == "rank_local_random"]
    (check,) = [check for check in checks_for(subject) if check.id == "WIN-04"]

    def violations() -> tuple[str, ...]:
        with pytest.raises(GuaranteeError) as caught:
            check(subject)
        return caught.value.evidence

    assert_follows_from_the_seed(violations)
