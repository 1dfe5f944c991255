"""Run programs with worlds in a session of their own, and read how each was judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
_LIMIT = 3600
"""Seconds of a session; for hangs alone."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size in which programs run."""

    seeds: int
    samples: int = 16
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Judgement:
    """How one world of one program was judged, with one seed."""

    program: str
    dtype: str
    seed: int
    world: str
    outcome: str
    """The outcome of the item, as pytest has it; an error where a fixture or the plan of its runs
    failed."""
    ratios: dict[str, float]
    """The largest, by what the limit was taken from (``parity.STAGES``); none of a reference."""
    wrong: tuple[str, ...]
    """Value and tensor, of the first comparison that fails."""
    is_named: bool
    """Whether the failure says the worst of them."""
    text: str

    @property
    def ratio(self) -> float:
        """The difference in multiples of rounding; where none was measured, of a quarter of the
        least limit.
        """
        return self.ratios.get("rounding", self.ratios.get("eps", 0.0))


def judgements(programs: Iterable[str], size: Size) -> list[Judgement]:
    """Run programs: files, or tests of them, such as ``test_faults.py::test_local_norm``.

    Raises:
        RuntimeError: the session has not come to its end.
    """
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "judgements.jsonl"
        # Not the project's pytest.ini: the programs are a user's.
        command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, f"--rootdir={PROGRAMS}"]
        command += ["-p", "parity_recorder", "-p", "no:cacheprovider", "--tb=short"]
        inherited = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
        environment = inherited | {
            "PYTHONPATH": str(PROGRAMS),
            "PARITY_RECORD": str(record),
            "PARITY_SEEDS": str(size.seeds),
            "PARITY_SAMPLES": str(size.samples),
            "PARITY_THREADS": str(size.threads),
        }
        run = subprocess.run(
            [*command, *(f"{PROGRAMS / program}" for program in programs)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LIMIT,
        )
        if run.returncode not in (0, 1):
            raise RuntimeError(f"pytest ended with {run.returncode}:\n{run.stdout}")
        return [_judgement(line) for line in record.read_text().splitlines()]


def _judgement(line: str) -> Judgement:
    fields = json.loads(line)
    return Judgement(**{**fields, "wrong": tuple(fields["wrong"])})
