"""Small programs that start processes by ``spawn``, as tests of an inner suite.

Each says by its asserts what multiprocessing promises, so that all pass under multiprocessing
itself as well. What their processes run lies in a module that needs no torch, as far as it can.
"""

PROGRAMS = """
import concurrent.futures
import contextlib
import multiprocessing.connection
import os
import signal
import socket
import sys
import time

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import targets

spawn = mp.get_context("spawn")
SERVED = "SERVED" in os.environ


def answer_of(target, *args, context=spawn, **kwargs):
    queue = context.Queue()
    process = context.Process(target=target, args=(queue, *args), **kwargs)
    process.start()
    answer = queue.get(timeout=60)
    process.join()
    assert process.exitcode == 0
    return answer


def test_which_are_served():
    assert answer_of(targets.is_served) is SERVED
    assert answer_of(targets.is_served, context=multiprocessing.get_context("spawn")) is SERVED


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_others_are_left_alone(method):
    assert answer_of(targets.is_served, context=mp.get_context(method)) is False


def test_default_start_method():
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)
    try:
        assert answer_of(targets.is_served, context=multiprocessing) is SERVED
    finally:
        multiprocessing.set_start_method(before, force=True)


def test_facts(monkeypatch, tmp_path):
    monkeypatch.setenv("SET_BY_TEST", "yes")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("of the test")
    mask = os.umask(0o027)
    try:
        facts = answer_of(targets.facts, name="a name", daemon=True)
    finally:
        os.umask(mask)
    assert facts["environment"].items() >= dict(os.environ).items()
    assert "HOME" not in facts["environment"]
    assert facts["at import"] == "yes"
    assert facts["cwd"] == str(tmp_path)
    assert facts["umask"] == 0o027
    assert facts["path"] == sys.path
    assert facts["argv"] == sys.argv
    assert facts["parent"] == (os.getpid(), os.getpid())
    assert facts["group"] == (os.getpgid(0), os.getsid(0))
    assert facts["me"] == ("a name", True, bytes(mp.current_process().authkey))
    assert facts["method"] == "spawn"
    assert facts["stdin"] == ""
    assert facts["interrupt"] is (signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    assert facts["children"] == []


def test_random_numbers_differ():
    assert answer_of(targets.draw) != answer_of(targets.draw)


def test_output(capfd):
    process = spawn.Process(target=targets.talk)
    process.start()
    process.join()
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["said at exit", "said on stdout", "written to 1"]
    assert err == "said on stderr\\n"


def test_primitives():
    event, lock, value, queue = spawn.Event(), spawn.Lock(), spawn.Value("i", 1), spawn.Queue()
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=targets.primitives, args=(event, lock, theirs, value, queue))
    process.start()
    ours.send("a")
    queue.put("x" * 1_000_000)
    event.set()
    assert ours.recv() == ["a", 1_000_000]
    process.join()
    assert (value.value, process.exitcode) == (2, 0)


def test_many_descriptors_and_much_data():
    pipes = [spawn.Pipe(duplex=False) for _ in range(30)]
    padded = [writing for _, writing in pipes]
    process = spawn.Process(target=targets.descriptors, args=(padded,), name="n" * 300_000)
    process.start()
    assert [reading.recv() for reading, _ in pipes] == list(range(30))
    process.join()
    assert process.exitcode == 0


def test_process():
    event = spawn.Event()
    process = spawn.Process(target=targets.wait, args=(event,))
    assert process.pid is None and not process.is_alive()
    process.start()
    assert process.is_alive() and process.exitcode is None and process in mp.active_children()
    process.join(0.1)
    assert process.is_alive()
    assert multiprocessing.connection.wait([process.sentinel], 0) == []
    with pytest.raises(ValueError):
        process.close()
    event.set()
    assert multiprocessing.connection.wait([process.sentinel], 60) == [process.sentinel]
    process.join()
    assert not process.is_alive() and process.exitcode == 0
    process.close()
    with pytest.raises(ValueError):
        process.exitcode


def test_ends_by_the_test():
    never, event = spawn.Event(), spawn.Event()
    up = spawn.SimpleQueue()
    first, second = (spawn.Process(target=targets.say_and_wait, args=(up, never)) for _ in "ab")
    third = spawn.Process(target=targets.ignore_term, args=(event,))
    for process in (first, second, third):
        process.start()
    event.wait()
    assert up.get() == up.get()
    first.terminate()
    third.terminate()
    os.kill(second.pid, signal.SIGINT)
    for process in (first, second):
        process.join()
    third.join(0.2)
    assert third.is_alive()
    third.kill()
    third.join()
    assert [first.exitcode, second.exitcode, third.exitcode] == [-15, 1, -9]


def test_waited_for_by_number():
    process = spawn.Process(target=targets.leave, args=(3,))
    process.start()
    _, status = os.waitpid(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 3


@pytest.mark.parametrize("code, expected", [(None, 0), (0, 0), (3, 3), ("in words", 1)])
def test_exit_codes(capfd, code, expected):
    process = spawn.Process(target=targets.leave, args=(code,))
    process.start()
    process.join()
    assert process.exitcode == expected
    assert ("in words" in capfd.readouterr().err) is (code == "in words")


def test_nested():
    assert answer_of(targets.nested)["method"] == "spawn"


def test_pools():
    with spawn.Pool(2) as pool:
        assert pool.map(targets.square, range(4)) == [0, 1, 4, 9]
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=spawn) as executor:
        assert list(executor.map(targets.square, range(4))) == [0, 1, 4, 9]
    with spawn.Manager() as manager:
        shared = manager.list([1])
        shared.append(2)
        assert list(shared) == [1, 2]


def test_what_cannot_be_pickled():
    process = spawn.Process(target=lambda: None)
    with pytest.raises(Exception, match="pickle"):
        process.start()


def test_what_cannot_be_found(monkeypatch, capfd):
    monkeypatch.setattr(targets, "of_today", targets.square, raising=False)
    monkeypatch.setattr(targets.square, "__qualname__", "of_today")
    process = spawn.Process(target=targets.square, args=(1,))
    process.start()
    process.join()
    assert process.exitcode == 1
    assert "AttributeError" in capfd.readouterr().err


# ------------------------------------------------------------------ torch.multiprocessing.spawn


def test_spawn_ends():
    assert mp.spawn(targets.on_rank, args=("end",), nprocs=2) is None


def test_spawn_raises():
    with pytest.raises(mp.ProcessRaisedException, match="ValueError: raised on rank 1") as raised:
        mp.spawn(targets.on_rank, args=("raise",), nprocs=2)
    assert raised.value.error_index == 1
    assert "-- Process 1 terminated with the following error:" in str(raised.value)
    assert 'targets.py", line' in str(raised.value)


def test_spawn_exits():
    with pytest.raises(mp.ProcessExitedException, match="1 terminated with exit code 3") as e:
        mp.spawn(targets.on_rank, args=("exit",), nprocs=2)
    assert (e.value.error_index, e.value.exit_code, e.value.signal_name) == (1, 3, None)


def test_spawn_is_killed():
    with pytest.raises(mp.ProcessExitedException, match="terminated with signal SIGKILL") as e:
        mp.spawn(targets.on_rank, args=("kill",), nprocs=2)
    assert (e.value.error_index, e.value.exit_code, e.value.signal_name) == (1, -9, "SIGKILL")


@pytest.mark.parametrize("start", [mp.spawn, mp.start_processes])
def test_spawn_without_join(start):
    event = spawn.Event()
    context = start(targets.on_rank_until, args=(event,), nprocs=2, join=False)
    assert context.join(0.1) is False
    assert [process.pid for process in context.processes] == context.pids()
    event.set()
    while not context.join():
        pass
    assert [process.exitcode for process in context.processes] == [0, 0]


def add_one(rank, tensor):
    tensor[rank] += 1


def test_shared_tensors():
    tensor = torch.zeros(2).share_memory_()
    mp.spawn(add_one, args=(tensor,), nprocs=2)
    assert tensor.tolist() == [1, 1]


def give(queue, event):
    queue.put(torch.arange(3))
    event.wait()


def test_tensors_through_a_queue():
    queue, event = spawn.Queue(), spawn.Event()
    process = spawn.Process(target=give, args=(queue, event))
    process.start()
    assert queue.get(timeout=60).tolist() == [0, 1, 2]
    event.set()
    process.join()
    assert process.exitcode == 0


def train(rank, size, method, steps):
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=size)
    torch.manual_seed(rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    numbers = torch.utils.data.TensorDataset(torch.randn(4, 2))
    loader = torch.utils.data.DataLoader(numbers, num_workers=steps - 1)
    for (batch,) in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    weights = [torch.zeros(1, 2) for _ in range(size)]
    dist.all_gather(weights, model.module.weight.detach())
    assert all(torch.equal(weights[0], other) for other in weights)
    assert torch.matmul(torch.randn(300, 300), torch.randn(300, 300)).shape == (300, 300)
    # A model that is let go of after its group takes the group down with the GIL held, and waits
    # for gloo's thread, which may want the GIL for what it has gathered (torch 2.13).
    del model
    dist.destroy_process_group()


def free_port():
    # Below those that the kernel gives to other programs, before a rank listens here.
    for port in range(10000 + os.getpid() * 37 % 20000, 32768):
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("localhost", port))
            return port


def test_training_over_tcp():
    mp.spawn(train, args=(2, f"tcp://localhost:{free_port()}", 1), nprocs=2)


def test_training_over_a_file_with_workers(tmp_path):
    mp.spawn(train, args=(2, f"file://{tmp_path}/store", 2), nprocs=2)


def by_store(rank, port, queue):
    store = dist.TCPStore("localhost", port, 2, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    gathered = [None, None]
    dist.all_gather_object(gathered, (torch.get_num_threads(), torch.rand(1).item()))
    queue.put(gathered)
    dist.barrier()
    dist.destroy_process_group()


def test_tcp_store():
    queue = spawn.SimpleQueue()
    mp.spawn(by_store, args=(free_port(), queue), nprocs=2)
    (threads, first), (same_threads, second) = queue.get()
    assert threads == same_threads
    assert first != second


@pytest.fixture(scope="module")
def server():
    event = spawn.Event()
    process = spawn.Process(target=targets.wait, args=(event,))
    process.start()
    yield process
    event.set()
    process.join()
    assert process.exitcode == 0


def test_with_a_server(server):
    assert server.is_alive()


def test_with_the_same_server(server):
    assert server.is_alive()


@pytest.fixture
def left_to_daemons():
    never = spawn.Event()
    process = spawn.Process(target=targets.wait, args=(never,), daemon=True)
    process.start()
    return process, never


def test_a_daemon_is_left(left_to_daemons):
    assert left_to_daemons[0].is_alive()
"""
