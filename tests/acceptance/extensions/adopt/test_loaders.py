"""Workers of a ``DataLoader`` in served processes and in tests of other harnesses."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.suite import SPAWNED, Finished, Suite

LOADING = """
import multiprocessing
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Numbers(Dataset):
    def __init__(self, folder, ends):
        self.folder, self.ends = folder, ends

    def __len__(self):
        return 16

    def __getitem__(self, index):
        Path(self.folder, str(os.getpid())).touch()
        # Rank 1's first item: the rank has received nothing from this worker then. The connection
        # over which it fetches a tensor may break a moment before it sees that the worker has
        # ended, and the DataLoader then raises an EOFError in place of its own message.
        if self.ends == "killed" and index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.ends == "never":
            time.sleep(0.5)
        return index


def load(rank, folder, method, persistent, ends):
    if ends == "killed" and rank == 0:
        # In a collective, its lost connection could be the first failure that is reported.
        signal.pause()
    data = Numbers(folder, ends)
    sampler = DistributedSampler(data, 2, rank, shuffle=False)
    loader = DataLoader(
        data,
        batch_size=2,
        sampler=sampler,
        num_workers=2 if method == "fork" else 1,  # the others import torch, which takes seconds
        multiprocessing_context=method,
        persistent_workers=persistent,
    )
    for _ in range(1000 if ends == "never" else 2):
        total = torch.cat(list(loader)).sum()
        dist.all_reduce(total)
        assert total == sum(range(16))
    return loader


def end_first(worker):
    # Called before a worker looks for its parent for the first time.
    rank = multiprocessing.parent_process().pid
    Path("early", str(os.getpid())).touch()
    if worker == 1:
        os.kill(rank, signal.SIGTERM)
    while os.getppid() == rank:
        time.sleep(0.01)


def ends_early(rank):
    # A worker of spawn, the default in a spawned process, survives this.
    forked = {"multiprocessing_context": "fork", "num_workers": 2}
    list(DataLoader(Numbers("", "well"), worker_init_fn=end_first, **forked))


def target(rank, store, folder, method="fork", persistent=False, ends="well"):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    loader = load(rank, folder, method, persistent, ends)
    if persistent:
        loader.kept = iter(loader)
        target.kept = loader
    dist.destroy_process_group()


def pids(folder):
    return [int(path.name) for path in Path(folder).iterdir()]
"""
SERVED = """
import os
import time

import pytest
import torch.multiprocessing as mp

from loading import ends_early, pids, target


@pytest.fixture
def args(tmp_path):
    folder = tmp_path / "workers"
    folder.mkdir()
    return str(tmp_path / "store"), str(folder)


@pytest.mark.parametrize("method, persistent", [("fork", False), ("fork", True), ("spawn", True)])
def test_works(args, method, persistent):
    mp.spawn(target, args=(*args, method, persistent), nprocs=2)
    workers = pids(args[1])
    # Two ranks have two each or one, and new ones for the second epoch.
    assert len(workers) == {"fork": 4 if persistent else 8, "spawn": 2}[method]
    assert not [pid for pid in workers if os.path.exists(f"/proc/{pid}")]


def test_worker_is_killed(args):
    mp.spawn(target, args=(*args, "fork", False, "killed"), nprocs=2)


def test_rank_ends_while_workers_start():
    with pytest.raises(mp.ProcessExitedException, match="SIGTERM"):
        mp.spawn(ends_early, nprocs=1)
"""
ENDLESS = """
import torch.multiprocessing as mp

from loading import target


def test_it(tmp_path):
    mp.spawn(target, args=(str(tmp_path / "store"), "workers", "fork", True, "never"), nprocs=2)
"""
ADOPTED = """
import tempfile

import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase

from loading import load


class TestLoaders(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def _load(self, method, persistent, ends="well"):
        store = dist.FileStore(self.file_name, 2)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=2)
        load(self.rank, "workers", method, persistent, ends)
        dist.destroy_process_group()

    def test_fork(self):
        self._load("fork", False)

    def test_forkserver(self):
        self._load("forkserver", True)

    def test_persistent(self):
        self._load("fork", True)

    def test_worker_is_killed(self):
        self._load("fork", False, "killed")
"""
PATIENCE = 60
"""Seconds; a worker looks for its parent every five."""
DIED = r"DataLoader worker \(pid(\(s\))? \d+\) (is killed by signal: Killed|exited unexpectedly)"
"""torch's two messages. The first is raised in torch's handler of SIGCHLD, wherever the process is.
Where torch only logs it, as in a callback of its profiler, the loader raises the second later."""


@pytest.fixture(scope="module")
def served(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("loading.py", LOADING)
    suite.write("test_served.py", SERVED)
    (suite.directory / "early").mkdir()
    return suite.run("--ddp-adopt=spawn", timeout=200)


@pytest.fixture(scope="module")
def adopted(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("loading.py", LOADING)
    suite.write("test_adopted.py", ADOPTED)
    (suite.directory / "workers").mkdir()
    return suite.run("--ddp-adopt=testcase", timeout=200)


def test_served_processes_have_workers(served: Finished) -> None:
    served.assert_outcomes(passed=4, failed=1)
    assert not served.warnings, served.tail()


def test_adopted_classes_have_workers(adopted: Finished) -> None:
    passed = {name for name, result in adopted.results.items() if result.verdict == "passed"}
    names = {"test_fork", "test_forkserver", "test_persistent"}
    assert {name.rpartition("::")[2] for name in passed} == names, adopted.tail()
    # That the test whose worker was killed has left its group is true, and none of a worker's.
    warnings = [text.replace("test_worker_is_killed", "") for text in adopted.warnings]
    assert not [text for text in warnings if "worker" in text], adopted.tail()


@pytest.mark.parametrize("harness", ["served", "adopted"])
def test_a_worker_that_died_is_reported(harness: str, request: pytest.FixtureRequest) -> None:
    found: Finished = request.getfixturevalue(harness)
    assert found["test_worker_is_killed"].phase("call").outcome == "failed"
    assert re.search(DIED, found["test_worker_is_killed"].text)


@pytest.mark.parametrize(("harness", "folder"), [("served", "early"), ("adopted", "workers")])
def test_no_worker_is_left(harness: str, folder: str, request: pytest.FixtureRequest) -> None:
    found: Finished = request.getfixturevalue(harness)
    _await_ends(_pids(found.directory / folder))


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_of_a_session_that_is_ended_nothing_is_left(suite: Suite, sent: signal.Signals) -> None:
    suite.write("loading.py", LOADING)
    suite.write("test_endless.py", ENDLESS)
    workers = suite.directory / "workers"
    workers.mkdir()
    running = suite.start("--ddp-adopt=spawn")
    try:
        _until(lambda: len(_pids(workers)) == 4)
    finally:
        # As a terminal does, and as one who looks for pytest.
        (os.killpg if sent == signal.SIGINT else os.kill)(running.pid, sent)
    running.finish(PATIENCE)
    _await_ends(_pids(workers))


def _pids(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir()]


def _await_ends(pids: list[int]) -> None:
    assert pids
    _until(lambda: not [pid for pid in pids if _runs(pid)])


def _runs(pid: int) -> bool:
    """Whether a process is there and no zombie, which waits for the machine's first process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE * (3 if SPAWNED else 1)
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)
