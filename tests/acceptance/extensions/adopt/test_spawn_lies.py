"""What harnesses of processes call a pass, or hang on: ``--ddp-adopt=spawn`` shows it."""

from __future__ import annotations

import functools
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.suite import Finished, Suite, flat

TARGETS = """
import ctypes
import os
import signal
import time

import torch
import torch.distributed as dist


def init(rank, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    # Who dies here is not to break off the other one, which may still connect.
    connected = dist.FileStore(f"{path}.connected", 2)
    connected.set(str(rank), "yes")
    connected.wait([str(1 - rank)])


def deadlock(rank, path):
    init(rank, path)
    if rank == 0:
        dist.all_reduce(torch.ones(1))
    else:
        dist.recv(torch.ones(1), src=0)


def killed(rank, path):
    init(rank, path)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def segv(rank, path):
    init(rank, path)
    if rank == 1:
        ctypes.string_at(0)


def left(rank, path):
    init(rank, path)
    if rank == 1:
        os._exit(0)


def raises(rank, path):
    init(rank, path)
    if rank == 1:
        raise ValueError("only on rank 1")


def slow(rank, path):
    init(rank, path)
    if rank == 1:
        time.sleep(3)
    dist.barrier()
    dist.destroy_process_group()


def left_alone(rank, path):
    init(rank, path)
    if rank == 1:
        raise ValueError("only on rank 1")
    dist.barrier()

"""
LIES = """
import pytest
import torch.multiprocessing as mp

import targets

NAMES = ["deadlock", "killed", "segv", "left", "raises"]


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "store")


def start(name, path):
    spawn = mp.get_context("spawn")
    target = getattr(targets, name)
    processes = [spawn.Process(target=target, args=(rank, path)) for rank in range(2)]
    for process in processes:
        process.start()
    return processes


@pytest.mark.parametrize("name", [*NAMES, "left_alone"])
def test_spawn(name, path):
    mp.spawn(getattr(targets, name), args=(path,), nprocs=2)


@pytest.mark.parametrize("name", NAMES)
def test_rank_0_alone(name, path):
    processes = start(name, path)
    for process in processes:
        process.join()
    if name != "deadlock":
        assert processes[0].exitcode == 0


@pytest.mark.parametrize("name", ["killed", "segv", "raises"])
def test_on_purpose(name, path):
    processes = start(name, path)
    for process in processes:
        process.join()
    assert processes[1].exitcode != 0


def test_swallowed(path):
    with pytest.raises(mp.ProcessExitedException):
        mp.spawn(targets.deadlock, args=(path,), nprocs=2)


def test_expected(path):
    with pytest.raises(mp.ProcessRaisedException, match="only on rank 1"):
        mp.spawn(targets.raises, args=(path,), nprocs=2)


def test_ended_by_the_test(path):
    for process in start("deadlock", path):
        process.kill()
        process.join()


def test_unpicklable():
    mp.spawn(lambda rank: None, nprocs=2)


def test_slow(path):
    mp.spawn(targets.slow, args=(path,), nprocs=2)


@pytest.mark.xfail(raises=mp.ProcessExitedException, strict=True)
def test_known_to_fail(path):
    mp.spawn(targets.left, args=(path,), nprocs=2)
"""


@pytest.fixture(scope="module")
def lies(new_suite: Callable[[], Suite]) -> Finished:
    return _run(new_suite())


def _run(suite: Suite, *args: str) -> Finished:
    suite.write("targets.py", TARGETS)
    suite.write("test_lies.py", LIES)
    return suite.run("--ddp-adopt=spawn", *args, timeout=100)


@pytest.mark.parametrize("name", ["deadlock", "killed", "segv", "left", "raises", "left_alone"])
def test_spawn_fails(lies: Finished, name: str) -> None:
    assert lies[f"test_spawn[{name}]"].verdict == "failed"


def test_what_cannot_be_pickled_is_reported_as_by_multiprocessing(lies: Finished) -> None:
    text = lies["test_unpicklable"].text
    assert "Can't pickle local object 'test_unpicklable.<locals>.<lambda>'" in text
    assert "pytest_ddp/" not in text


@pytest.mark.parametrize("name", ["deadlock", "killed", "segv", "left", "raises"])
def test_rank_0_does_not_speak_for_all(lies: Finished, name: str) -> None:
    assert lies[f"test_rank_0_alone[{name}]"].verdict == "failed"


@pytest.mark.parametrize(
    "name",
    [
        *("test_on_purpose[killed]", "test_on_purpose[segv]", "test_on_purpose[raises]"),
        *("test_expected", "test_ended_by_the_test", "test_slow"),
    ],
)
def test_what_the_test_knows_is_no_failure(lies: Finished, name: str) -> None:
    assert lies[name].verdict == "passed", lies[name].text


def test_expected_failures_stay_so(lies: Finished) -> None:
    assert lies["test_known_to_fail"].verdict == "xfailed"


@pytest.mark.parametrize("name", ["test_spawn[deadlock]", "test_rank_0_alone[deadlock]"])
def test_a_deadlock_is_proved(lies: Finished, name: str) -> None:
    text = flat(lies[name].text)
    assert (
        "deadlock: rank 0 waits in all_reduce #1 of the default group, rank 1 in recv #1 from "
        "rank 0 (tag 0)"
    ) in text
    assert "targets.py:22" in text
    assert "targets.py:24" in text


def test_a_deadlock_is_no_pass_for_a_test_that_expects_an_error(lies: Finished) -> None:
    assert lies["test_swallowed"].verdict == "failed"
    assert "deadlock: rank 0 waits in all_reduce" in lies["test_swallowed"].text


def test_where_a_process_died_is_reported(lies: Finished) -> None:
    text = flat(lies["test_spawn[segv]"].text)
    assert "process 1 terminated with signal SIGSEGV" in text
    assert "died of SIGSEGV, at targets.py:36 in segv" in text
    assert "died of SIGKILL" in lies["test_spawn[killed]"].text


def test_an_early_exit_is_reported(lies: Finished) -> None:
    for name in ("test_spawn[left]", "test_rank_0_alone[left]"):
        text = flat(lies[name].text)
        assert "exited with code 0 before its target had returned, at targets.py:42 in left" in text
        assert "ddp_adopt_exits = plain" in text


def test_the_test_that_started_it_is_named(lies: Finished) -> None:
    text = flat(lies["test_rank_0_alone[killed]"].text)
    assert "Started by test_lies.py::test_rank_0_alone[killed]." in text
    assert "reads the exitcode" in text


def test_what_became_of_the_others_is_reported(lies: Finished) -> None:
    text = lies["test_spawn[left_alone]"].text
    assert "ValueError: only on rank 1" in text
    # torch quotes the first process that it finds failed: rank 0 may have lost its peer by then.
    quoted = re.search(r"-- Process (\d) terminated", text)
    assert quoted, text
    assert f"process {1 - int(quoted[1])} (pid " in text
    assert "died of SIGTERM" in text or "exited with code 1" in text


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("test_spawn[deadlock]", "DDP-002"),
        ("test_rank_0_alone[deadlock]", "DDP-002"),
        ("test_spawn[segv]", "DDP-066"),
        ("test_spawn[left]", "DDP-066"),
        ("test_rank_0_alone[left]", "DDP-066"),
        ("test_rank_0_alone[killed]", "DDP-066"),
    ],
)
def test_the_text_has_a_code(lies: Finished, name: str, code: str) -> None:
    assert f"{code}: python -m pytest_ddp explain {code}" in lies[name].text


def test_an_exception_of_the_test_has_none(lies: Finished) -> None:
    assert "DDP-" not in lies["test_spawn[left_alone]"].text


def test_plain_exits(suite: Suite) -> None:
    found = _run(suite, "-oddp_adopt_exits=plain", "-k", "alone and not deadlock")
    found.assert_outcomes(passed=4, failed=1)
    assert found["test_spawn[left_alone]"].verdict == "failed"


FOREVER = """
import os
import time
from pathlib import Path

import torch
import torch.multiprocessing as mp


def wait(rank):
    Path(f"pid{rank}").write_text(f"{os.getpid()}\\n")
    while True:
        time.sleep(60)


def test_forever():
    mp.spawn(wait, nprocs=2)
"""


def test_nothing_outlives_a_killed_pytest(suite: Suite) -> None:
    suite.write("test_forever.py", FOREVER)
    running = suite.start("--ddp-adopt=spawn")
    files = [suite.directory / f"pid{rank}" for rank in range(2)]
    _wait_until(lambda: all(_is_written(file) for file in files))
    os.kill(running.pid, signal.SIGKILL)
    running.finish(60)
    for file in files:
        _wait_until(functools.partial(_is_gone, int(file.read_text())))


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _is_written(file: Path) -> bool:
    return file.exists() and file.read_text().endswith("\n")


def _is_gone(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"
