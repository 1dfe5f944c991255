"""``--ddp-adopt=spawn`` beside other options and plugins, and where nothing can be served."""

from __future__ import annotations

import sys

import pytest

from tests.acceptance.suite import Suite

TARGETS = """
import os
import sys


def answer(queue):
    served = "pytest_ddp.extensions.adopt.ranks.served_process" in sys.modules
    threads = sys.modules["torch"].get_num_threads() if served else 0
    queue.put((served, threads, os.getppid()))


def leave(rank=0):
    print("left by", rank, flush=True)
    os._exit(0)


def fail():
    sys.exit(1)


def loop():
    while True:
        pass
"""
PRELUDE = """
import os
import unittest

import pytest
import torch
import torch.multiprocessing as mp

import targets

spawn = mp.get_context("spawn")


def answer():
    queue = spawn.SimpleQueue()
    process = spawn.Process(target=targets.answer, args=(queue,))
    process.start()
    process.join()
    assert process.exitcode == 0
    return queue.get()


def is_served():
    return answer()[0]

"""
STARTUP = """
import multiprocessing.spawn  # which notes the program that it starts itself
import sys
from pathlib import Path

own = Path(__file__).parent / "python"
if own.exists():
    own.chmod(0o700)
    sys.executable = str(own)
"""
"""Has the service started by a program of the suite's, if there is one."""
NOT_SERVED = """
def test_first():
    assert not is_served()


def test_second():
    assert not is_served()
"""


@pytest.fixture
def suite(suite: Suite) -> Suite:
    suite.write("targets.py", TARGETS)
    suite.write("conftest.py", STARTUP)
    return suite


def _warning(warnings: tuple[str, ...]) -> str:
    (text,) = (text for text in warnings if "--ddp-adopt=spawn" in text)
    return text


@pytest.mark.parametrize("filters", [(), ("-W", "error::pytest_ddp.DdpWarning")], ids=str)
def test_a_service_with_threads(suite: Suite, filters: tuple[str, ...]) -> None:
    """A thread that runs when the service is asked for something stands in the way of a fork."""
    source = f"""\
        #!{sys.executable}
        import sys, threading, time
        threading.Thread(target=time.sleep, args=[600], name="early", daemon=True).start()
        command = sys.argv.index("-c")
        sys.argv[:command + 2], source = ["-c"], sys.argv[command + 1]
        exec(source)
    """
    suite.write("python", source)
    suite.write("test_it.py", PRELUDE + NOT_SERVED)
    found = suite.run("--ddp-adopt=spawn", *filters)
    found.assert_outcomes(passed=2)
    if not filters:
        text = _warning(found.warnings)
        assert "multiprocessing starts processes itself, since threads run in their service" in text
        assert "early" in text


def test_a_service_that_dies(suite: Suite) -> None:
    suite.write("python", "#!/bin/sh\necho has no licence\n")
    suite.write("test_it.py", PRELUDE + NOT_SERVED)
    found = suite.run("--ddp-adopt=spawn")
    found.assert_outcomes(passed=2)
    text = _warning(found.warnings)
    assert "since the service has died" in text
    assert "has no licence" in text


def test_measured_processes_are_spawned(suite: Suite) -> None:
    suite.write("test_it.py", PRELUDE + NOT_SERVED)
    found = suite.run("--ddp-adopt=spawn", env={"COVERAGE_PROCESS_START": "missing"})
    assert "COVERAGE_PROCESS_START is set" in _warning(found.warnings)


def test_without_torch_nothing_is_served(suite: Suite) -> None:
    prelude = PRELUDE.replace(
        "import torch\nimport torch.multiprocessing", "import multiprocessing"
    )
    suite.write("test_it.py", prelude + NOT_SERVED)
    suite.fresh = True
    found = suite.run("--ddp-adopt=spawn")
    found.assert_outcomes(passed=2)
    assert not found.warnings


def test_variables_that_are_read_at_import(suite: Suite) -> None:
    source = """
        @pytest.mark.parametrize("threads", [1, 2])
        def test_threads(threads, monkeypatch):
            monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
            assert answer()[:2] == (True, threads)


        def test_a_deadlock_of_their_processes(tmp_path, monkeypatch):
            processes = []
            for rank in range(2):
                monkeypatch.setenv("OMP_NUM_THREADS", str(rank + 1))
                process = spawn.Process(target=receive, args=(rank, str(tmp_path / "store")))
                process.start()
                processes.append(process)
            for process in processes:
                process.join()


        def receive(rank, path):
            import torch.distributed as dist

            method = f"file://{path}"
            dist.init_process_group("gloo", init_method=method, rank=rank, world_size=2)
            dist.recv(torch.ones(1), src=1 - rank)
    """
    suite.write("test_it.py", PRELUDE + "\n".join(line[8:] for line in source.splitlines()))
    found = suite.run("--ddp-adopt=spawn")
    found.assert_outcomes(passed=2, failed=1)
    text = found["test_a_deadlock_of_their_processes"].text
    assert "deadlock: rank 0 waits in recv #1 from rank 1" in text


AROUND = """
def test_served():
    assert answer()[0::2] == (True, os.getpid())


class TestOfUnittest(unittest.TestCase):
    def test_served(self):
        self.assertTrue(is_served())

    def test_left(self):
        mp.spawn(targets.leave, nprocs=2)


def test_forked_off():
    process = mp.get_context("fork").Process(target=from_a_fork)
    process.start()
    process.join()
    assert process.exitcode == 0


def from_a_fork():
    assert not is_served()


@pytest.fixture
def left():
    yield
    process = spawn.Process(target=targets.leave)
    process.start()
    process.join()


def test_left_in_teardown(left):
    pass


@pytest.fixture
def served():
    return is_served()


def test_in_a_fixture(served):
    assert served
"""


LOOKED_AT_LATER = """
def failing():
    process = spawn.Process(target=targets.fail)
    process.start()
    process.join()
    return process


@pytest.fixture(params=["looks", "does not"])
def of_a_test(request):
    process = failing()
    yield
    if request.param == "looks":
        assert process.exitcode == 1


@pytest.fixture(scope="module")
def wide():
    process = failing()
    yield
    assert process.exitcode == 1


def test_it(of_a_test):
    pass


def test_with_wide(wide):
    pass


def test_with_wide_again(wide):
    pass


@pytest.fixture(scope="session")
def widest():
    failing()


def test_with_widest(widest):
    pass


def test_last():
    pass
"""


LEFT_RUNNING = """
from multiprocessing.connection import wait

import torch.distributed as dist

left = []


def fail_after(event):
    event.wait()
    raise RuntimeError("late")


def hang_after(event, path, rank):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    event.wait()
    dist.recv(torch.ones(1), src=1 - rank)


def leave(target, *args):
    event = spawn.Event()
    process = spawn.Process(target=target, args=(event, *args), daemon=True)
    process.start()
    left.append((event, process))


@pytest.fixture
def leaves():
    leave(fail_after)


def ended():
    # Without a join.
    processes = [process for _, process in left]
    for event, process in left:
        event.set()
        wait([process.sentinel])
    left.clear()
    return processes


def test_leaves_a_failure():
    leave(fail_after)


def test_is_not_judged_by_it():
    ended()


def test_leaves_that_of_a_fixture(leaves):
    pass


def test_is_not_judged_by_that():
    ended()


def test_leaves_a_hang(tmp_path):
    leave(hang_after, str(tmp_path / "store"), 0)
    leave(hang_after, str(tmp_path / "store"), 1)


def test_is_not_judged_by_the_hang():
    for event, _ in left:
        event.set()
    ended()


def test_leaves_another():
    leave(fail_after)


def test_joins_it():
    (process,) = ended()
    process.join()
"""


def test_what_a_test_left_running_fails_only_a_test_that_joins_it(suite: Suite) -> None:
    suite.write("test_it.py", PRELUDE + LEFT_RUNNING)
    found = suite.run("--ddp-adopt=spawn", "-p", "no:randomly")
    found.assert_outcomes(passed=7, failed=1)
    assert "Started by test_it.py::test_leaves_another." in found["test_joins_it"].text
    a_failure, of_a_fixture, a_hang = found.warnings
    assert a_failure.startswith("test_it.py::test_leaves_a_failure left processes running, which")
    assert "SpawnProcess-1" in a_failure
    assert of_a_fixture.startswith("test_it.py::test_leaves_that_of_a_fixture left processes")
    assert "deadlock: rank 0 waits in recv #1 from rank 1" in a_hang


def test_fixtures_may_look_when_they_are_torn_down(suite: Suite) -> None:
    suite.write("test_it.py", PRELUDE + LOOKED_AT_LATER)
    found = suite.run("--ddp-adopt=spawn", "-p", "no:randomly")
    assert found["test_it[looks]"].verdict == "passed"
    assert found["test_it[does not]"].verdict == "passed+error"
    for name in ("test_with_wide", "test_with_wide_again", "test_with_widest"):
        assert found[name].verdict == "passed", found.tail()
    assert found["test_last"].verdict == "passed+error"
    assert "test_with_widest" in found["test_last"].text


@pytest.mark.parametrize(
    "args", [(), ("-n", "2"), ("-s",), ("--capture=sys",), ("-p", "no:threadexception")], ids=str
)
def test_beside_options_of_pytest(suite: Suite, args: tuple[str, ...]) -> None:
    suite.write("test_it.py", PRELUDE + AROUND)
    found = suite.run("--ddp-adopt=spawn", *args)
    found.assert_outcomes(passed=5, failed=1, error=1)
    assert found["TestOfUnittest::test_left"].verdict == "failed"
    assert found["test_left_in_teardown"].verdict == "passed+error"


POLICE = """
import os
import threading

import pytest


def threads():
    return {*threading.enumerate(), *os.listdir("/proc/self/task")}


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = threads()
    yield
    assert not threads() - before
"""
POLICED = """
import threading
import time

import torch.distributed as dist

event = spawn.Event()
up = spawn.SimpleQueue()


def meet(rank, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    dist.barrier()
    dist.destroy_process_group()


def stay(up, event):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    up.put(True)
    event.wait()


@pytest.mark.parametrize("time", range(8))
def test_spawn(tmp_path, time):
    mp.spawn(meet, args=(str(tmp_path / "store"),), nprocs=2)


def test_stays():
    spawn.Process(target=stay, args=(up, event), daemon=True).start()
    assert up.get()


def test_fork_beside_it():
    process = mp.get_context("fork").Process(target=time.sleep, args=(0,))
    process.start()
    process.join()
    assert process.exitcode == 0
    event.set()


def test_with_a_thread_of_its_own():
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""


def test_no_thread_is_there_that_a_test_did_not_start(suite: Suite) -> None:
    suite.write("conftest.py", POLICE)
    suite.write("test_it.py", PRELUDE + POLICED)
    found = suite.run("--ddp-adopt=spawn", "-p", "no:randomly")
    found.assert_outcomes(passed=11, error=1)
    own = found["test_with_a_thread_of_its_own"]
    assert own.verdict == "passed+error"
    assert "pytest_ddp" not in own.text


def test_a_timeout_of_pytest_timeout(suite: Suite) -> None:
    suite.write(
        "test_it.py",
        PRELUDE
        + """
@pytest.mark.timeout(2)
def test_late():
    process = spawn.Process(target=targets.loop, daemon=True)
    process.start()
    process.join()


def test_next():
    assert is_served()
""",
    )
    found = suite.run("--ddp-adopt=spawn")
    found.assert_outcomes(passed=1, failed=1)
    assert "Timeout" in found["test_late"].text


def test_the_ini_option(suite: Suite) -> None:
    suite.write("pytest.ini", "[pytest]\nddp_adopt = all\nddp_adopt_exits = plain\n")
    suite.write("test_it.py", PRELUDE + "\ndef test_it():\n    assert is_served()\n")
    suite.run().assert_outcomes(passed=1)


def test_a_wrong_word_is_refused(suite: Suite) -> None:
    found = suite.run("-oddp_adopt_exits=checkd")
    assert found.returncode == pytest.ExitCode.USAGE_ERROR
    assert "ini option ddp_adopt_exits=checkd: it is one of checked and plain" in found.flat, (
        found.tail()
    )


def test_ranks_are_beside_served_processes(suite: Suite) -> None:
    source = """
import torch.distributed as dist


@pytest.mark.ddp(world_size=2)
def test_on_ranks(ddp):
    dist.barrier()
    assert not is_served()


def test_here():
    assert is_served()
"""
    suite.write("test_it.py", PRELUDE + source)
    suite.run("--ddp-adopt=spawn").assert_outcomes(passed=2)
