"""Whatever way pytest ends, two seconds later nothing of the ranks is left.

Processes are found by a variable that only the inner run's environment has, the
files of /dev/shm by the process numbers in their names: other runs on the machine
neither disturb these tests nor are disturbed.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from execnet.gateway_io import popen_bootstrapline

from tests.acceptance.ends.hygiene_examples import (
    EVERY_STATE,
    FAILURES,
    LEAVES,
    ONE_STATE,
    STATES,
    TIMEOUTS,
    WORKER_DIES,
)
from tests.acceptance.suite import EXTRA_ARGS, SPAWNED, Finished, Running, Suite

MARK = "DDP_HYGIENE_RUN"
LIMIT = 2.0
"""Seconds after pytest's end until nothing may be left."""
OWN_LIMIT = 20.0
"""Seconds after pytest's end for what ends in its own time: xdist's workers, which outlive xdist's
main process, and torch's shared-memory daemon, which removes its files 2 s after its last client
has ended."""
START_LIMIT = 120.0
"""Seconds until all ranks of an inner test have reported themselves, on a loaded machine."""
END_LIMIT = 120.0
"""Seconds until pytest has ended, on a loaded machine."""
SPAWN = ("--ddp-start-method=spawn",) if SPAWNED else ()
SHM = Path("/dev/shm")


# ---------------------------------------------------------------- what is left


def ours(run: str) -> list[int]:
    """Processes that have the inner run's variable in their environment."""
    wanted = f"{MARK}={run}".encode()
    found = []
    for directory in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if directory.name.isdigit() and wanted in (directory / "environ").read_bytes():
                found.append(int(directory.name))
    return found


def wait_for_ends(run: str, limit: float) -> list[int]:
    """Wait until none of the run's processes lives; those that do after ``limit`` seconds."""
    deadline = time.monotonic() + limit
    while (left := ours(run)) and (seconds := deadline - time.monotonic()) > 0:
        with contextlib.suppress(ProcessLookupError):
            watch = os.pidfd_open(left[0])
            try:
                select.select([watch], [], [], seconds)
            finally:
                os.close(watch)
    return left


def ends_in_its_own_time(pid: int) -> bool:
    """True for torch's shared-memory daemon, and for an interpreter that xdist has started (none
    that one of those has)."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True  # gone meanwhile, and not worth more than another look
    # A process that is just ending has no command line any more.
    return not command or b"torch_shm_manager" in command or popen_bootstrapline.encode() in command


def describe(pid: int) -> str:
    with contextlib.suppress(OSError):
        process = Path(f"/proc/{pid}")
        command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:60]
        state = (process / "stat").read_text().rpartition(")")[2].split()[:4]
        return f"{pid}: state, parent, group, session {state}, {command}"
    return f"{pid}: gone meanwhile"


class Watched:
    """An inner run whose traces can be distinguished from all others."""

    def __init__(self, suite: Suite, source: str) -> None:
        self.suite = suite
        self._run = uuid.uuid4().hex
        # Not below the suite's own: torch's shared memory manager makes a socket in it, whose
        # path has room for 107 characters.
        self._temporary = Path(tempfile.mkdtemp())
        self._seen = suite.write("seen", "")
        self._fifo = suite.directory / "here"
        os.mkfifo(self._fifo)
        # Also for writing: the end of one writer is not the end of the file then.
        self._ears = os.open(self._fifo, os.O_RDWR)
        suite.write("states.py", STATES)
        suite.write("test_it.py", source)

    def start(self, *args: str, extra: Sequence[str] = EXTRA_ARGS, **env: str) -> Running:
        names = {"HERE": str(self._fifo), "SEEN": str(self._seen), "TMPDIR": str(self._temporary)}
        return self.suite.start(*args, env={MARK: self._run, **names, **env}, extra=extra)

    def hear(self, count: int) -> None:
        """Wait until ``count`` processes have written that they are in their state.

        Raises:
            AssertionError: they did not within ``START_LIMIT`` seconds.
        """
        heard = b""
        deadline = time.monotonic() + START_LIMIT
        while heard.count(b"\n") < count:
            left = max(deadline - time.monotonic(), 0.0)
            ready, _, _ = select.select([self._ears], [], [], left)
            assert ready, f"only {heard!r} of {count} processes came up"
            heard += os.read(self._ears, 4096)

    def shared_files(self) -> set[str]:
        """Files of /dev/shm that torch made for processes of the run."""
        pids = set(self._seen.read_text().split())
        named = ((entry.name, re.match(r"torch_(\d+)_", entry.name)) for entry in SHM.iterdir())
        return {name for name, match in named if match and match[1] in pids}

    def left(self, limit: float = LIMIT) -> str:
        """What the run has left ``limit`` seconds from now, a line each; processes are killed then.

        Workers of xdist and torch's daemons are waited for, once nothing of ours is left.
        """
        pids = wait_for_ends(self._run, limit)
        if limit and all(map(ends_in_its_own_time, pids)):
            pids = wait_for_ends(self._run, OWN_LIMIT - limit)
        found = [f"process {describe(pid)}" for pid in pids]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        found += [f"/dev/shm/{name}" for name in sorted(self.shared_files())]
        found += [str(e) for e in self._temporary.iterdir() if not e.match("pytest-of-*")]
        return "\n".join(found)

    def close(self) -> None:
        os.close(self._ears)
        self.left(limit=0)
        shutil.rmtree(self._temporary)


@pytest.fixture
def watched(suite: Suite) -> Iterator[Watched]:
    with contextlib.closing(Watched(suite, ONE_STATE)) as watched:
        yield watched


# ---------------------------------------------------------------- pytest ends by itself


@dataclass(frozen=True)
class Ended:
    """A run that ended by itself, and what it left."""

    finished: Finished
    left: str


@pytest.fixture(scope="module", params=["leaves", "failures", "timeouts"])
def ended(request: pytest.FixtureRequest, new_suite: Callable[[], Suite]) -> Ended:
    source = {"leaves": LEAVES, "failures": FAILURES, "timeouts": TIMEOUTS}[request.param]
    with contextlib.closing(Watched(new_suite(), source)) as watched:
        finished = watched.start().finish(END_LIMIT)
        return Ended(finished, watched.left())


def test_an_end_leaves_nothing(ended: Ended) -> None:
    assert ended.left == ""


def test_the_end_is_the_one_that_was_meant(ended: Ended) -> None:
    """What was to fail or to hang did so, in each state."""
    for name, result in ended.finished.results.items():
        meant = "passed" if "passes" in name or "leaves" in name else "failed"
        if "pending_collective" in name:
            meant = "failed"
        assert result.verdict == meant, (name, result.text)
    assert len(ended.finished.results) in (3, 6, 7)


# ---------------------------------------------------------------- pytest is ended

STATES_OF_RANKS = {"busy": 2, "blocked": 2, "stuck": 4}
"""State: number of processes that report it, with two ranks."""
ENDS = {
    signal.SIGINT: (pytest.ExitCode.INTERRUPTED,),
    signal.SIGTERM: (-signal.SIGTERM, 128 + signal.SIGTERM),
    signal.SIGKILL: (-signal.SIGKILL,),
}
"""Signal: exit codes that are right."""


@pytest.mark.parametrize("state", STATES_OF_RANKS)
@pytest.mark.parametrize("number", ENDS, ids=lambda number: number.name)
def test_a_signal_leaves_nothing(watched: Watched, state: str, number: signal.Signals) -> None:
    running = watched.start(STATE=state)
    watched.hear(STATES_OF_RANKS[state])
    assert bool(watched.shared_files()) == (state == "stuck")
    running.process.send_signal(number)
    finished = running.finish(END_LIMIT)
    assert watched.left() == ""
    assert finished.returncode in ENDS[number]


def test_interrupt_during_start_leaves_nothing(watched: Watched) -> None:
    """The host is importing torch, and no rank is there yet."""
    slow = "import os, sys\nif 'torch' in sys.modules:\n    from states import note, signal\n"
    slow += "    note('HERE')\n    signal.pause()\n"
    watched.suite.write("conftest.py", slow)
    for number in (signal.SIGINT, signal.SIGKILL):
        running = watched.start(STATE="busy")
        watched.hear(1)
        running.process.send_signal(number)
        running.finish(END_LIMIT)
        assert watched.left() == ""


def test_kill_of_xdist_leaves_nothing(new_suite: Callable[[], Suite]) -> None:
    """xdist's workers are the controllers, and outlive it for some seconds by themselves."""
    with contextlib.closing(Watched(new_suite(), EVERY_STATE)) as watched:
        running = watched.start("-n", "3", extra=SPAWN)
        watched.hear(sum(STATES_OF_RANKS.values()))
        running.process.kill()
        running.finish(END_LIMIT)
        assert watched.left() == ""


def test_kill_of_a_worker_leaves_nothing(new_suite: Callable[[], Suite]) -> None:
    """The worker of xdist dies, and another one takes over."""
    with contextlib.closing(Watched(new_suite(), WORKER_DIES)) as watched:
        finished = watched.start("-n", "1", extra=SPAWN).finish(END_LIMIT)
        assert watched.left() == ""
    assert finished["test_kills_its_worker"].verdict == "failed"
    assert finished["test_after"].verdict == "passed"
