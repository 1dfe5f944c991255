"""Explore a program, and replay what was found: by the command line alone."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fidelity.races.records import Program
from fidelity.races.running import session

RUNS = 20
"""The most runs for one test."""

FOUND = re.compile(r"schedule (\d+) of \d+")
"""Finds in the text of a failure the number of the run that failed."""
REPLAY = re.compile(r"Replay:\s+--ddp-schedule='([^']+)'")
UNSTABLE = re.compile(r"fails in (\d+) of (\d+) runs without a hold")
HOLDS = re.compile(r"explored with (\d+) holds?")
"""Finds in the summary how many holds there were."""
BOUNDED = re.compile(r"(\d+) of them ended by a bound")
"""Finds in the summary how many holds ended by time."""
UNDECIDED = re.compile(r"^ddp: undecided: ", re.MULTILINE)
"""Finds in the summary each failure that may be no race."""


@dataclass(frozen=True, slots=True)
class Exploration:
    """What one session with ``--ddp-explore`` said of the programs that it explored."""

    outcomes: dict[str, str]
    """Outcomes by the name of a program; failed if one of its tests did."""
    schedule: int
    """The number of the run that failed first; 0 if none did."""
    replay: str
    """What the first failure gives to ``--ddp-schedule``."""
    bounded: int
    holds: int
    undecided: int
    seconds: float
    """Wall time of the whole session."""
    text: str

    @property
    def is_found(self) -> bool:
        """Whether a failure under a hold was reported."""
        return "failed" in self.outcomes.values() and bool(self.replay)


def explore(programs: Sequence[Program], cache: Path) -> Exploration:
    """Explore programs of one kind in a session of their own.

    Raises:
        RuntimeError: the session has not come to its end.
    """
    began = time.monotonic()
    explored = ["-v", f"--ddp-explore={RUNS}", "-o", f"cache_dir={cache}"]
    found = session([program.path for program in programs], explored)
    seconds = time.monotonic() - began
    outcomes = {program.name: "did not run" for program in programs}
    for run in found.runs:
        if outcomes[run.program] != "failed":
            outcomes[run.program] = run.outcome
    return Exploration(
        outcomes,
        _number(FOUND, found.output),
        (REPLAY.findall(found.output) or [""])[0],
        _number(BOUNDED, found.output),
        _number(HOLDS, found.output),
        len(UNDECIDED.findall(found.output)),
        seconds,
        found.output,
    )


def replays(program: Program, schedule: str, cache: Path | None) -> bool:
    """Whether a schedule fails again, in a session of its own; ``cache`` is None without one."""
    kept = ["-p", "no:cacheprovider"] if cache is None else ["-o", f"cache_dir={cache}"]
    found = session([program.path], [f"--ddp-schedule={schedule}", *kept])
    return any(run.outcome == "failed" for run in found.runs)


def _number(pattern: re.Pattern[str], text: str) -> int:
    """The first number that a pattern has found; 0 without one."""
    found = pattern.search(text)
    return 0 if found is None else int(found[1])
