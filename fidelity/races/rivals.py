"""Other ways to find a race, each for a given wall time: repetition, and sleeps at points."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from fidelity.races.records import Program
from fidelity.races.running import session

WAYS = {"count": "", "random sleeps": "random", "each point": "each"}
"""What ``races_repeat`` does at points, by the names of the ways in the table."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one way found in its time."""

    runs: int
    is_found: bool

    def __str__(self) -> str:
        return f"run {self.runs}" if self.is_found else f"none of {self.runs}"


def attempt(program: Program, way: str, seconds: float) -> Attempt:
    """Run a race in one of the ``WAYS`` until it fails or its time is up, start of pytest included.

    Raises:
        RuntimeError: the session has not come to its end.
    """
    found = session(
        [program.path],
        ["-x", "-p", "no:cacheprovider"],
        plugins=("races_recorder", "races_repeat"),
        variables={"RACES_SLEEPS": WAYS[way], "RACES_UNTIL": str(time.time() + seconds)},
    )
    failed = [run.outcome == "failed" for run in found.runs]
    return Attempt(len(failed), any(failed))


def points(program: Program) -> int:
    """How many points of ``races_repeat`` all ranks of a plain run reach together."""
    with tempfile.TemporaryDirectory() as folder:
        counted = Path(folder) / "points.txt"
        session(
            [program.path],
            ["-p", "no:cacheprovider"],
            plugins=("races_recorder", "races_repeat"),
            variables={"RACES_POINTS": str(counted)},
        )
        return sum(int(line.split()[-1]) for line in counted.read_text().splitlines())
