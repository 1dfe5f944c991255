"""A minute of random suites, always the same ones; ``make chaos`` plays an hour of others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.judge import judge
from tests.chaos.plan import MOMENTS, plan
from tests.chaos.play import play

SEEDS = (23, 26)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_verdict_is_the_truth(seed: int, tmp_path: Path) -> None:
    (tmp_path / "suite").mkdir()
    suite = plan(seed, tests=6)
    played = play(suite, tmp_path)
    assert judge(suite, played) == [], played.tail


def test_a_seed_determines_the_plan() -> None:
    assert [plan(seed) for seed in range(20)] == [plan(seed) for seed in range(20)]
    assert plan(0) != plan(1)


def test_kills_come_as_often_as_asked_and_at_all_moments() -> None:
    suites = [plan(seed, kills=1) for seed in range(100)]
    assert [replace(suite, kills=()) for suite in suites] == [plan(s, kills=0) for s in range(100)]
    assert {len(plan(seed, kills=2.5).kills) for seed in range(100)} == {2, 3}
    kills = [(kill, len(suite.expected)) for suite in suites for kill in suite.kills]
    assert len(kills) == 100
    assert {kill.target for kill, _ in kills} == {"pytest", "host", "rank"}
    assert {kill.moment for kill, _ in kills} == set(MOMENTS)
    left = {tests - kill.after for kill, tests in kills if kill.moment == "tests"}
    assert {0, 1, 2} < left


def test_suites_are_python() -> None:
    for seed in range(200):
        for name, source in plan(seed).files.items():
            compile(source, f"{seed}/{name}", "exec")
