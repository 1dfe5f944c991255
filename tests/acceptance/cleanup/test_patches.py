"""A test may patch the standard library, and torch: the plugin does not notice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import LOADFILE, Finished, Suite, flat

PATCHES = """
    import pytest

    TARGETS = '''
        os.getpid os.getppid os.kill os.killpg os.fork os.dup os.read os.write os.open os.close
        os.listdir os.path.exists os.chdir os.getenv os.sched_yield os.waitid os.pidfd_open
        os.fsencode os.set_inheritable os.register_at_fork os.getuid
        time.time time.time_ns time.monotonic time.monotonic_ns time.perf_counter time.sleep
        signal.signal signal.getsignal signal.getitimer signal.setitimer signal.SIGUSR1
        threading.Thread.start threading.Thread.join threading.Thread.is_alive threading.Thread
        threading.Lock threading.get_ident threading.enumerate threading.main_thread
        socket.socket.sendmsg socket.socket.recvmsg socket.socket socket.recv_fds socket.close
        json.JSONEncoder.encode json.dumps json.loads pickle.dumps pickle.loads
        base64.b64encode base64.b64decode queue.SimpleQueue select.select mmap.mmap zlib.crc32
        sys._current_frames sys.getrefcount sys.exit sys.platform builtins.open io.open
        pathlib.Path.read_text pathlib.Path.open pathlib.Path.iterdir
        gc.collect gc.get_count random.seed inspect.getsource traceback.format_exc
        faulthandler.enable faulthandler.register faulthandler.dump_traceback
        faulthandler.is_enabled
        torch.distributed.is_initialized torch.distributed.is_available
        torch.distributed.destroy_process_group torch.distributed.init_process_group
        torch.get_default_dtype torch.is_grad_enabled torch.get_num_threads
    '''.split()

    def refuse(*args, **kwargs):
        raise RuntimeError("patched")

    def patch(monkeypatch, targets):
        for target in targets:
            monkeypatch.setattr(target, refuse)
"""
PASSES = """
    import pytest
    import torch
    import torch.distributed as dist
    from patches import TARGETS, patch

    pytestmark = pytest.mark.ddp(world_size=2)

    def work(ddp):
        ones = torch.ones(1)
        dist.all_reduce(ones)
        assert ones == 2
        assert ddp.gather([ddp.rank]) == [[0], [1]]
        ddp.barrier()
        with ddp.phase("mine"):
            print("said")

    def test_wraps():
        torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))

    @pytest.fixture(scope="module", params=[*TARGETS, "all"])
    def wide(request):
        with pytest.MonkeyPatch.context() as monkeypatch:
            patch(monkeypatch, TARGETS if request.param == "all" else [request.param])
            yield

    @pytest.mark.parametrize("target", [*TARGETS, "all"])
    def test_in_body(ddp, monkeypatch, target):
        patch(monkeypatch, TARGETS if target == "all" else [target])
        work(ddp)

    def test_in_fixture(ddp, wide):
        work(ddp)

    def test_in_fixture_again(ddp, wide):
        work(ddp)
"""
OTHERS = """
    import multiprocessing
    import os
    import pickle
    import threading
    import time

    import pytest
    import torch.distributed as dist
    from patches import TARGETS, patch

    SPAWN = multiprocessing.get_context("spawn")
    CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")

    def differ(ddp):
        ddp.gather(1) if ddp.rank else dist.barrier()

    @pytest.mark.ddp(world_size=2)
    def test_hangs(ddp, monkeypatch):
        patch(monkeypatch, TARGETS)
        differ(ddp)

    @pytest.mark.ddp(world_size=2, timeout=4)
    def test_sleeps(ddp, monkeypatch):
        sleep = time.sleep
        patch(monkeypatch, TARGETS)
        ddp.gather(1) if ddp.rank else sleep(600)

    @pytest.fixture(scope="module", params=[0, 10**9])
    def frozen(request):
        with pytest.MonkeyPatch.context() as monkeypatch:
            for clock in CLOCKS:
                unit = 10**9 if clock.endswith("_ns") else 1
                now = request.param * unit + 5
                monkeypatch.setattr(time, clock, lambda now=now: now)
            yield

    def test_ordinary(frozen):
        \"\"\"The clocks of the pytest process stand still too.\"\"\"

    @pytest.mark.ddp(world_size=2)
    def test_forks_in_frozen_time(ddp, frozen):
        stop = []
        busy = threading.Thread(target=lambda: all(not stop for _ in iter(int, 1)))
        busy.start()
        try:
            if (child := os.fork()) == 0:
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        finally:
            stop.append(True)
            busy.join()

    @pytest.mark.ddp(world_size=2)
    def test_hangs_in_frozen_time(ddp, frozen):
        differ(ddp)

    @pytest.mark.ddp(world_size=2, timeout=4)
    def test_sleeps_in_frozen_time(ddp, frozen):
        ddp.gather(1) if ddp.rank else time.sleep(600)

    @pytest.mark.ddp(world_size=2)
    def test_pickles(ddp):
        assert pickle.loads(pickle.dumps(os._exit)) is os._exit
        child = SPAWN.Process(target=os._exit, args=(3,))
        child.start()
        child.join()
        assert child.exitcode == 3
        with SPAWN.Pool(1) as pool:
            assert pool.apply(os.getpid) not in (os.getpid(), None)
"""


@pytest.fixture(scope="module")
def passing(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("patches.py", PATCHES)
    suite.write("test_suite.py", PASSES)
    return suite.run(*LOADFILE)


@pytest.fixture(scope="module")
def others(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("patches.py", PATCHES)
    suite.write("test_suite.py", OTHERS)
    return suite.run(*LOADFILE)


def test_a_test_that_patches_is_green(passing: Finished) -> None:
    red = [name for name, result in passing.results.items() if result.verdict != "passed"]
    assert red == []
    assert len(passing.results) > 200
    assert passing.returncode == 0


@pytest.mark.parametrize("name", ["test_hangs", "test_hangs_in_frozen_time[0]"])
def test_a_hang_under_patches_is_proved(others: Finished, name: str) -> None:
    result = others[name]
    assert result.verdict == "failed"
    deadlock = "deadlock: rank 0 waits in barrier #1 of the default group, rank 1 in ddp.gather #1"
    assert flat(result.text).startswith(deadlock)
    assert "in differ" in result.text


@pytest.mark.parametrize("name", ["test_sleeps", "test_sleeps_in_frozen_time[1000000000]"])
def test_a_deadline_holds_under_patches(others: Finished, name: str) -> None:
    result = others[name]
    assert result.verdict == "failed"
    assert "timed out after 4 s" in result.text
    assert f"in {name.partition('[')[0]}" in result.text


@pytest.mark.parametrize("name", ["test_forks_in_frozen_time[0]", "test_pickles"])
def test_children(others: Finished, name: str) -> None:
    assert others[name].verdict == "passed"
