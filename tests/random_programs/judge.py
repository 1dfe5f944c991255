"""Runs random programs under the plugin, and compares its verdicts with what gloo does alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.acceptance.suite import Suite
from tests.random_programs.programs import make
from tests.random_programs.truth import HANGS

ROOT = Path(__file__).parents[2]
PAUSE = 0.7
"""Seconds of each sleep, in which the prover looks twice."""
LIMIT = 8.0
"""Seconds for a program that hangs and is not proved to."""

CONFTEST = f"""
    import sys

    sys.path.append({str(ROOT)!r})
"""
TESTS = """
    import pytest
    import torch.distributed as dist

    from tests.random_programs.interpreter import perform
    from tests.random_programs.programs import make


    @pytest.mark.ddp(world_size=3, timeout={limit})
    @pytest.mark.parametrize("seed", range({first}, {first} + {count}))
    def test_program(ddp, seed):
        program = make(seed)
        groups = {{each: dist.new_group(list(each)) for each in program.groups}}
        perform(program, ddp.rank, groups, {pause})
"""


@dataclass
class Totals:
    """Seeds by what was found."""

    fates: Counter[str] = field(default_factory=Counter)
    accused: list[int] = field(default_factory=list)
    """Programs that end and were accused of a hang."""
    proved: list[int] = field(default_factory=list)
    planted: list[int] = field(default_factory=list)
    missed: list[int] = field(default_factory=list)
    """Programs with a planted hang that was not proved, or that do not hang."""
    other: dict[int, str] = field(default_factory=dict)
    """Kinds of failure of programs that end, and of programs that hang and were not proved to."""

    def __str__(self) -> str:
        programs = sum(self.fates.values())
        fates = ", ".join(f"{number} {fate}" for fate, number in sorted(self.fates.items()))
        found = len(self.planted) - len(self.missed)
        return (
            f"{programs} programs: {fates} with gloo alone\n"
            f"accused though they end: {len(self.accused)} {self.accused or ''}\n"
            f"hangs proved: {len(self.proved)} of {self.fates[HANGS]}, of the {len(self.planted)} "
            f"planted ones {found} {self.missed or ''}\n"
            f"other failures: {dict(Counter(self.other.values()))} {self.other or ''}"
        )


def judge(first: int, count: int, directory: Path) -> Totals:
    """The verdicts on the programs of these seeds against their fates."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.random_programs.truth"]
    plain = subprocess.run(
        [*command, str(first), str(count)], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    fates = {int(seed): fate for seed, fate in json.loads(plain.stdout).items()}
    kinds = _verdicts(first, count, directory)
    totals = Totals(Counter(fates.values()))
    for seed, fate in sorted(fates.items()):
        is_proved = kinds.get(seed) in ("deadlock", "mismatch")
        if make(seed).planted:
            totals.planted.append(seed)
            if not is_proved or fate != HANGS:
                totals.missed.append(seed)
        if is_proved:
            (totals.proved if fate == HANGS else totals.accused).append(seed)
        elif seed in kinds:
            totals.other[seed] = kinds[seed]
    return totals


def _verdicts(first: int, count: int, directory: Path) -> dict[int, str]:
    """The kind of each failure, by seed."""
    suite = Suite(directory)
    suite.write("conftest.py", CONFTEST)
    source = TESTS.format(first=first, count=count, pause=PAUSE, limit=LIMIT)
    suite.write("test_programs.py", source)
    limit = 120 + count * (1 + LIMIT)
    finished = suite.run("-q", "--ddp-diagnosis=found", timeout=limit, extra=())
    assert len(finished.results) == count, finished.tail()
    found = (json.loads(path.read_text()) for path in (directory / "found").iterdir())
    return {
        int(each["nodeid"].rpartition("[")[2].rstrip("]")): each["failures"][0]["kind"]
        for each in found
    }
