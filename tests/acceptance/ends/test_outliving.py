"""What tests and ranks that are killed leave in /dev/shm and in TMPDIR goes with their session."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.suite import SPAWNED, Finished, Suite

SPAWN = ("--ddp-start-method=spawn",) if SPAWNED else ()
SHM = Path("/dev/shm")
LIMIT = 10.0
"""Seconds that multiprocessing's resource tracker may outlive pytest, on a loaded machine."""
START_LIMIT = 120.0

PRELUDE = """
    import multiprocessing
    import os
    import signal
    from multiprocessing import shared_memory
    from multiprocessing.connection import Listener
    from pathlib import Path

    import pytest
    import torch
    from ddp_conformance.framework.ranks import shared_directory
    from torch.utils.data import DataLoader

    KEEP = []

    def note(name):
        with open(os.environ["MADE"], "a") as stream:
            stream.write(f"{name}\\n")

    def leave(ddp):
        memory = shared_memory.SharedMemory(create=True, size=100)
        note(memory.name)
        spawning = multiprocessing.get_context("spawn")
        queue = spawning.Queue()
        note(f"sem.{queue._rlock._semlock.name[1:]}")
        batches = iter(DataLoader(torch.arange(99), num_workers=1, persistent_workers=True))
        KEEP.extend([memory, queue, Listener(family="AF_UNIX"), batches, next(batches)])

    def die():
        os.kill(os.getpid(), signal.SIGKILL)
"""

LEAVING = (
    PRELUDE
    + """
    @pytest.mark.ddp(world_size=2)
    def test_passes_and_leaves(ddp):
        memory = shared_memory.SharedMemory(create=True, size=100)
        note(memory.name)

    @pytest.mark.ddp(world_size=2)
    def test_passes_and_leaves_a_listener(ddp):
        KEEP.append(Listener(family="AF_UNIX"))

    @pytest.mark.ddp(world_size=2)
    def test_is_killed(ddp):
        leave(ddp)
        ddp.barrier()
        if ddp.rank == 1:
            die()
        ddp.barrier()

    @pytest.mark.ddp(world_size=2)
    def test_all_are_killed(ddp):
        leave(ddp)
        ddp.barrier()
        die()

    @pytest.mark.ddp(world_size=2)
    def test_is_killed_in_a_shared_directory(ddp):
        with shared_directory(ddp) as directory:
            (directory / "it").touch()
            die()

    @pytest.mark.ddp(world_size=2, timeout=3)
    def test_hangs(ddp):
        leave(ddp)
        signal.pause()

    @pytest.mark.ddp(world_size=2)
    def test_kills_the_host(ddp):
        leave(ddp)
        ddp.barrier()
        if ddp.rank == 0:
            os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()
"""
)

WAITING = (
    PRELUDE
    + """
    @pytest.mark.ddp(world_size=2)
    def test_waits(ddp):
        leave(ddp)
        ddp.barrier()
        if ddp.rank == 0:
            note(f"host {os.getppid()}")
        signal.pause()
"""
)


@dataclass
class Place:
    """A suite with a temporary directory of its own, and the names of what its tests made."""

    suite: Suite

    def __post_init__(self) -> None:
        # pytest's own is too long for sockets, below a worker of xdist.
        self.temporary = Path(tempfile.mkdtemp())
        weakref.finalize(self, shutil.rmtree, self.temporary, ignore_errors=True)
        self.made = self.suite.write("made", "")
        self.env = {"TMPDIR": str(self.temporary), "MADE": str(self.made)}

    def names(self) -> list[str]:
        return self.made.read_text().splitlines()

    def left(self) -> list[str]:
        """Files that are left some seconds later, which their users may need; without a cache of
        torch."""
        deadline = time.monotonic() + LIMIT
        while (left := self._shared()) and time.monotonic() < deadline:
            time.sleep(0.05)
        files = (entry for entry in self.temporary.rglob("*") if "torchinductor" not in str(entry))
        return left + [str(entry) for entry in files]

    def _shared(self) -> list[str]:
        return [name for name in self.names() if (SHM / name).exists()]


def wait_until_free(folder: Path) -> None:
    """Wait for those who have a folder open: DataLoader workers look for their rank every 5 s."""
    descriptor = os.open(folder, os.O_RDONLY)
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        time.sleep(0.05)
    os.close(descriptor)


@pytest.fixture(scope="module")
def place(new_suite: Callable[[], Suite]) -> Place:
    place = Place(new_suite())
    place.suite.write("test_it.py", LEAVING)
    return place


@pytest.fixture(scope="module")
def run(place: Place) -> Finished:
    return place.suite.run(env=place.env, extra=SPAWN)


def test_verdicts(run: Finished, place: Place) -> None:
    run.assert_outcomes(passed=2, failed=4, error=1)
    assert "the ranks died of SIGKILL before" in run["test_kills_the_host"].text
    assert len(place.names()) == 2 * (1 + 4 * 2)


def test_an_end_leaves_nothing(run: Finished, place: Place) -> None:
    assert place.left() == []


def test_the_next_session_sweeps_where_all_were_killed(suite: Suite) -> None:
    place = Place(suite)
    suite.write("test_it.py", WAITING)
    running = suite.start(env=place.env, extra=SPAWN)
    deadline = time.monotonic() + START_LIMIT
    while not (hosts := [name for name in place.names() if name.startswith("host")]):
        assert time.monotonic() < deadline, running.stdout
        time.sleep(0.05)
    host = int(hosts[0].split()[1])
    os.kill(host, signal.SIGSTOP)  # it would clean up
    running.process.kill()
    os.kill(host, signal.SIGKILL)
    running.process.wait()
    (folder,) = place.temporary.glob("pddp-*")
    wait_until_free(folder)
    theirs = place.temporary / "pddp-by-hand"
    theirs.symlink_to(suite.directory)
    suite.write("test_it.py", "import pytest\n@pytest.mark.ddp(world_size=1)\ndef test_it(ddp): 0")
    suite.run(env=place.env, extra=SPAWN).assert_outcomes(passed=1)
    assert place.left() == [str(theirs)]
    assert not folder.exists()
