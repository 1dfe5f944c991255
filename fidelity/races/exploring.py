"""Explore a program, and replay what was found: by the command line alone."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fidelity.races.records import Program
from fidelity.races.running import Session, session

RUNS = 20
"""At most, for one test."""

FOUND = re.compile(r"schedule (\d+) of \d+")
"""In the text of a failure: the number of the run that failed."""
REPLAY = re.compile(r"Replay: --ddp-schedule='([^']+)'")
UNSTABLE = re.compile(r"fails in (\d+) of (\d+) runs without a hold")
BOUNDED = re.compile(r"(\d+) (?:of \d+ )?holds? ended by (?:its|their|the|a) bound")
"""In the summary: how many holds ended by time."""
HOLDS = re.compile(r"of (\d+) holds|(\d+) holds")
"""In the summary: how many holds there were."""
UNDECIDED = re.compile(r"(\d+) undecided|undecided: (\d+)")


@dataclass(frozen=True, slots=True)
class Exploration:
    """What one session with ``--ddp-explore`` said of one program."""

    program: str
    outcome: str
    """Of its tests: failed if one of them did."""
    schedule: int
    """The number of the run that failed; 0 if none did."""
    replay: str
    """What the failure gives to ``--ddp-schedule``."""
    bounded: int
    holds: int
    undecided: int
    seconds: float
    """Wall time of the whole session."""
    text: str

    @property
    def is_found(self) -> bool:
        """Whether a failure under a hold was reported."""
        return self.outcome == "failed" and bool(self.replay)


def explore(program: Program, cache: Path) -> Exploration:
    """Explore a program in a session of its own.

    Raises:
        RuntimeError: the session has not come to its end.
    """
    began = time.monotonic()
    found = _session(program, [f"--ddp-explore={RUNS}", "-v", "-o", f"cache_dir={cache}"])
    seconds = time.monotonic() - began
    outcomes = {run.outcome for run in found.runs}
    outcome = next((one for one in ("failed", "passed", "skipped") if one in outcomes), "none")
    return Exploration(
        program.name,
        outcome,
        _number(FOUND, found.output),
        (REPLAY.findall(found.output) or [""])[0],
        _number(BOUNDED, found.output),
        _number(HOLDS, found.output),
        _number(UNDECIDED, found.output),
        seconds,
        found.output,
    )


def replays(program: Program, schedule: str, cache: Path | None) -> bool:
    """Whether a schedule fails again, in a session of its own; ``cache`` is None without one."""
    kept = ["-p", "no:cacheprovider"] if cache is None else ["-o", f"cache_dir={cache}"]
    found = _session(program, [f"--ddp-schedule={schedule}", *kept])
    return any(run.outcome == "failed" for run in found.runs)


def _session(program: Program, arguments: Sequence[str]) -> Session:
    return session([program.path], arguments)


def _number(pattern: re.Pattern[str], text: str) -> int:
    """The first number that a pattern has found; 0 without one."""
    found = pattern.search(text)
    return 0 if found is None else int(next(group for group in found.groups() if group))
