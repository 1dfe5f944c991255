"""Some random programs, always the same ones; ``make random-programs`` judges 2,000."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.random_programs.judge import judge
from tests.random_programs.programs import EVERY, KINDS, make

FIRST, COUNT = 40, 24


def test_no_program_that_ends_is_accused_and_planted_hangs_are_proved(tmp_path: Path) -> None:
    totals = judge(FIRST, COUNT, tmp_path)
    assert totals.fates["ends"] > COUNT / 2, totals
    assert totals.planted, totals
    assert not totals.accused, totals
    assert not totals.missed, totals


def test_a_seed_determines_the_program() -> None:
    assert [make(seed) for seed in range(50)] == [make(seed) for seed in range(50)]
    assert make(0) != make(EVERY)


def test_programs_have_all_operations_and_plants() -> None:
    programs = [make(seed) for seed in range(300)]
    steps = Counter(step.do for each in programs for part in each.steps for step in part)
    assert set(KINDS) | {"recv", "wait", "sleep"} == steps.keys()
    planted = Counter(each.planted for each in programs if each.planted)
    assert planted.keys() == {"leaves", "crossed", "differs"}
    assert planted.total() == 300 / EVERY
