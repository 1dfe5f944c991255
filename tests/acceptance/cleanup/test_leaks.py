"""What a test leaves behind retires its rank; what ends or helps by itself does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.recorded import Run, run_recorded, source
from tests.acceptance.suite import Suite

LEAKS = {
    "group": ("dist.new_group([0, 1])", "process group"),
    "thread": ("threading.Thread(target=forever, name='stray').start()", "stray"),
    "daemon_thread": (
        "threading.Thread(target=forever, name='demon', daemon=True).start()",
        "demon",
    ),
    "child": ("KEEP.append(subprocess.Popen(['sleep', '1000']))", "sleep 1000"),
    "children": (
        "KEEP.extend(subprocess.Popen(['sleep', '1000']) for _ in range(5))",
        "5 child processes (sleep 1000)",
    ),
    "forked_child": ("os.fork() or forever()", "(forked by the test)"),
    "loader": (
        "KEEP.append(iter(DataLoader(range(9), num_workers=1, persistent_workers=True)))\n"
        "    next(KEEP[-1])",
        "(a DataLoader worker)",
    ),
}
"""Name: what a test leaves behind, a word of the warning."""

CLEAN = {
    "garbage_loader": "use_persistent_workers()",
    "cyclic_garbage_loader": "use_persistent_workers(cycle=True)",
    "used_loader": "assert len(list(DataLoader(range(9), num_workers=2))) == 9",
    "joined_thread": "join(threading.Thread(target=int))",
    "thread_on_its_way_out": "threading.Thread(target=int).start()",
    "waited_child": "subprocess.run(['true'], check=True)",
    "ended_child": "KEEP.append(subprocess.Popen(['true']))",
    "executor": "concurrent.futures.ThreadPoolExecutor(1).submit(int).result()",
    "closed_executor": "use_executor()",
    "resource_tracker": "resource_tracker.ensure_running()",
    "shared_memory": "use_shared_memory()",
    "spawned_process": "use_spawned_process()",
    "shared_tensor": "use_shared_tensor()",
}
"""Name: what a test does and may do."""

HOUSEHOLD = """
    import concurrent.futures
    import multiprocessing
    import os
    import signal
    import subprocess
    import threading
    from multiprocessing import resource_tracker, shared_memory

    import pytest
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader

    KEEP = []

    def forever():
        threading.Event().wait()

    def join(thread):
        thread.start()
        thread.join()

    def use_persistent_workers(cycle=False):
        loader = DataLoader(range(9), num_workers=1, persistent_workers=True)
        assert len(list(loader)) == len(list(loader)) == 9
        if cycle:
            loader.myself = [loader]

    def use_executor():
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            assert list(pool.map(int, "12")) == [1, 2]

    def use_shared_memory():
        memory = shared_memory.SharedMemory(create=True, size=100)
        memory.close()
        memory.unlink()

    def use_spawned_process():
        process = multiprocessing.get_context("spawn").Process(target=int)
        process.start()
        process.join()

    def use_shared_tensor():
        torch.multiprocessing.set_sharing_strategy("file_system")
        KEEP.append(torch.ones(3).share_memory_())
        torch.multiprocessing.set_sharing_strategy("file_descriptor")
"""

HOUSEHOLD_TEST = """
    @pytest.mark.ddp(world_size=2)
    def test_before_{name}(ddp):
        pass

    @pytest.mark.ddp(world_size=2)
    def test_{name}(ddp):
        {deed}

    @pytest.mark.ddp(world_size=2)
    def test_after_{name}(ddp):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2.0
"""


@pytest.fixture(scope="module")
def run(new_suite: Callable[[], Suite]) -> Run:
    suite = new_suite()
    suite.write("test_leaks.py", source(HOUSEHOLD, HOUSEHOLD_TEST, LEAKS))
    clean = {name: (deed, "") for name, deed in CLEAN.items()}
    suite.write("test_clean.py", source(HOUSEHOLD, HOUSEHOLD_TEST, clean))
    return run_recorded(suite)


def test_verdicts(run: Run) -> None:
    run.finished.assert_outcomes(passed=3 * len(LEAKS) + 3 * len(CLEAN))


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_retires_the_rank(run: Run, name: str) -> None:
    before, leaking, after = (
        run.pids(f"test_{which}{name}") for which in ("before_", "", "after_")
    )
    assert before == leaking
    assert not set(leaking) & set(after)
    warnings = run.warnings_about(f"test_{name}")
    # A DataLoader has a thread as well, which is another kind.
    assert [LEAKS[name][1] in text for text in warnings].count(True) == 1, warnings
    assert all("behind" in text and "replaced" in text for text in warnings), warnings


@pytest.mark.parametrize("name", CLEAN)
def test_what_ends_or_helps_is_no_leak(run: Run, name: str) -> None:
    for which in ("before_", "", "after_"):
        assert run.warnings_about(f"test_{which}{name}") == []
        assert run.pids(f"test_{which}{name}") == run.pids(f"test_before_{name}")


LEFT_BEHIND = """
    import threading

    import pytest

    pytestmark = pytest.mark.ddp(world_size=2)


    def leave_a_thread():
        threading.Thread(target=threading.Event().wait, daemon=True).start()


    def test_warned_of(ddp):
        leave_a_thread()


    @pytest.mark.filterwarnings("ignore::pytest_ddp.DdpWarning")
    def test_meant(ddp):
        leave_a_thread()
"""


def test_filters_hold_for_warnings_of_the_plugin(suite: Suite) -> None:
    suite.write("test_it.py", LEFT_BEHIND)
    found = suite.run()
    found.assert_outcomes(passed=2)
    (warning,) = found.warnings
    assert "test_warned_of" in warning
    silent = suite.run("-W", "ignore::pytest_ddp.DdpWarning")
    silent.assert_outcomes(passed=2)
    assert not silent.warnings
