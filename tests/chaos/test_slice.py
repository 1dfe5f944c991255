"""A minute of random suites, always the same ones; ``make chaos`` plays an hour of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.judge import judge
from tests.chaos.plan import plan
from tests.chaos.play import play

SEEDS = (23, 26)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_verdict_is_the_truth(seed: int, tmp_path: Path) -> None:
    (tmp_path / "suite").mkdir()
    suite = plan(seed, tests=6)
    played = play(suite, tmp_path)
    assert judge(suite, played) == [], played.tail


def test_a_seed_says_all() -> None:
    assert [plan(seed) for seed in range(20)] == [plan(seed) for seed in range(20)]
    assert plan(0) != plan(1)


def test_suites_are_python() -> None:
    for seed in range(200):
        for name, source in plan(seed).files.items():
            compile(source, f"{seed}/{name}", "exec")
