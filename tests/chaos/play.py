"""Runs the suite of a plan and looks at what it has left."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from tests.acceptance.suite import Finished, Running, Suite
from tests.chaos import processes
from tests.chaos.plan import Kill, Plan

LIMIT, LIMIT_OF_TEST = 400.0, 10.0
"""Seconds for a suite, and for each of its tests, on a machine with ten times the work it can do;
what takes longer does not end."""
SURVIVAL = 20.0
"""Seconds that processes may outlive pytest: workers of xdist take Python down by themselves."""


@dataclass(frozen=True)
class Played:
    """A run, and what was seen after it."""

    finished: Finished | None
    """The run; None if it did not end in time."""
    survivors: list[str]
    files: list[str]
    notes: list[list[str]]
    """What fixtures have noted: begins or ends, name, process id."""
    killed: tuple[Kill, ...]
    """The signals from outside that found somebody."""
    seconds: float
    tail: str


def play(plan: Plan, directory: Path) -> Played:
    """Write the suite into the directory and run it there."""
    suite = Suite(directory / "suite")
    # An early signal is to find a host that imports torch.
    suite.fresh = any(kill.moment in ("start", "collection") for kill in plan.kills)
    for name, source in plan.files.items():
        suite.write(name, source)
    run, notes = uuid.uuid4().hex, directory / "notes"
    # torch makes a socket in it, whose path has room for 107 characters.
    temporary = Path(tempfile.mkdtemp(prefix="chaos-"))
    env = {processes.VARIABLE: run, "CHAOS_NOTES": str(notes), "TMPDIR": str(temporary)}
    env["TORCHINDUCTOR_CACHE_DIR"] = str(directory / "inductor")  # by default in TMPDIR
    began = time.monotonic()
    running = suite.start("-v", "-rA", *plan.args, env=env, extra=())
    finished, killed = None, []
    ends = began + LIMIT + LIMIT_OF_TEST * len(plan.expected)
    try:
        killed = [kill for kill in plan.kills if _strikes(kill, running, directory, ends)]
        finished = running.finish(ends - time.monotonic())
        tail = finished.output
    except AssertionError as error:
        tail = str(error)
    finally:  # also an interrupt before a signal's moment must leave nothing behind
        if running.process.poll() is None:
            running.kill()
    (directory / "output").write_text(tail)
    shown = [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []
    survivors = processes.survivors(run, SURVIVAL)
    pids = {words[-1] for words in shown}
    files = processes.files_left(temporary, pids)
    if files and any(kill.target == "pytest" and kill.sign != signal.SIGINT for kill in killed):
        # It ends at once, a host that still imports ends with it, and the next session sweeps.
        _run_next_session(directory / "next", env)
        files = processes.files_left(temporary, pids)
    shutil.rmtree(temporary)
    seconds = time.monotonic() - began
    return Played(finished, survivors, files, shown, tuple(killed), seconds, tail)


def _run_next_session(directory: Path, env: dict[str, str]) -> None:
    suite = Suite(directory)
    suite.write(
        "test_next.py", "import pytest\n\n@pytest.mark.ddp(world_size=1)\ndef test_next(): pass"
    )
    suite.run(env=env, extra=()).assert_outcomes(passed=1)


def _strikes(kill: Kill, running: Running, directory: Path, ends: float) -> bool:
    """Send the signal when its time has come; False if there was nobody to send it to."""

    def wait() -> list[int]:
        found: list[int] = []
        while not found and running.process.poll() is None and time.monotonic() < ends:
            time.sleep(0.02)
            found = _victims(kill, running, directory)
        return found

    if wait():
        time.sleep(kill.delay)
    while found := wait():
        with contextlib.suppress(ProcessLookupError):
            os.kill(found[int(kill.delay * 100) % len(found)], kill.sign)
            return True
    return False


def _victims(kill: Kill, running: Running, directory: Path) -> list[int]:
    """Whom the signal may strike; nobody before its moment."""
    if kill.moment == "collection" and "collecting" not in running.stdout:
        return []
    if kill.moment == "tests" and _shown(directory / "suite-run1" / "records") < kill.after:
        return []
    return processes.targets(running.pid, kill.target)


def _shown(records: Path) -> int:
    """How many tests have been reported to the end of their teardown."""
    text = records.read_text(errors="replace") if records.exists() else ""
    return text.count('"when": "teardown"')
