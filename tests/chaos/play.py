"""Runs the suite of a plan and looks at what it has left."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from tests.acceptance.suite import Finished, Running, Suite
from tests.chaos import processes
from tests.chaos.plan import Kill, Plan

LIMIT = 240.0
"""Seconds for a suite; what takes longer does not end."""
SURVIVAL = 20.0
"""Seconds that processes may outlive pytest: workers of xdist take Python down by themselves."""


@dataclass(frozen=True)
class Played:
    """A run, and what was seen after it."""

    finished: Finished | None
    """None if it did not end in time."""
    survivors: list[str]
    files: list[str]
    notes: list[list[str]]
    """What fixtures have noted: begins or ends, name, process id."""
    killed: bool
    """True if the signal from outside found somebody."""
    seconds: float
    tail: str


def play(plan: Plan, directory: Path) -> Played:
    """Write the suite into the directory and run it there."""
    suite = Suite(directory / "suite")
    for name, source in plan.files.items():
        suite.write(name, source)
    run, notes = uuid.uuid4().hex, directory / "notes"
    # torch makes a socket in it, whose path has room for 107 characters.
    temporary = Path(tempfile.mkdtemp(prefix="chaos-"))
    env = {processes.VARIABLE: run, "CHAOS_NOTES": str(notes), "TMPDIR": str(temporary)}
    env["TORCHINDUCTOR_CACHE_DIR"] = str(directory / "inductor")  # by default in TMPDIR
    began = time.monotonic()
    running = suite.start("-v", "-rA", *plan.args, env=env, extra=())
    finished, tail = None, ""
    killed = plan.kill is not None and _kill(plan.kill, running, run, directory)
    try:
        finished = running.finish(LIMIT)
        tail = finished.output
    except AssertionError as error:
        tail = str(error)
    (directory / "output").write_text(tail)
    told = [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []
    survivors = processes.survivors(run, SURVIVAL)
    files = processes.files_left(temporary, {words[-1] for words in told})
    shutil.rmtree(temporary)
    return Played(finished, survivors, files, told, killed, time.monotonic() - began, tail)


def _kill(kill: Kill, running: Running, run: str, directory: Path) -> bool:
    """Send the signal when its time has come; False if there was nobody to send it to."""
    records = directory / "suite-run1" / "records"
    deadline = time.monotonic() + LIMIT / 2
    while running.process.poll() is None and time.monotonic() < deadline:
        if records.exists() and records.read_text().count("\n") >= kill.after:
            break
        time.sleep(0.02)
    time.sleep(kill.delay)
    found = processes.targets(run, running.pid, kill.target)
    if running.process.poll() is not None or not found:
        return False
    os.kill(found[int(kill.delay * 100) % len(found)], kill.sign)
    return True
