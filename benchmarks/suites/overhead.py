"""What a rank's instruments cost, measured inside a rank: with them and without, in turns."""

import contextlib
import ctypes
import inspect
import json
import os
import time

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers

from pytest_ddp.rank.status.landmarks import TransparentWrapper

ROUNDS = int(os.environ["BENCHMARK_COUNT"])
CALLS, STEPS = 400, 5
RECORDERS = ["2000", "0"] * 3
"""Values of TORCH_FR_BUFFER_SIZE: torch's own default, and none; in turns."""


_bound = ctypes.pythonapi.PyInstanceMethod_New
_bound.restype, _bound.argtypes = ctypes.py_object, [ctypes.py_object]


def _original(function):
    """What a wrapper of the plugin wraps; None for anything else."""
    if type(function) is TransparentWrapper:
        return function.__wrapped__
    if "pytest_ddp" not in getattr(function, "__code__", _original.__code__).co_filename:
        return None
    return inspect.getclosurevars(function).nonlocals.get("original") or getattr(
        function, "__wrapped__", None
    )


def _wrappers():
    owners = (dist.ProcessGroup, dist.Work, DistributedDataParallel)
    for owner in (*owners, torch.autograd, torch.autograd.graph):
        for name, function in list(vars(owner).items()):
            if inspect.isfunction(function) and (original := _original(function)) is not None:
                yield owner, name, function, original


@contextlib.contextmanager
def _bare():
    """The rank as torch alone would have it."""
    wrappers = list(_wrappers())
    assert {name for _, name, _, _ in wrappers} >= {
        *("allreduce", "barrier", "wait", "__init__", "forward", "_engine_run_backward"),
    }, wrappers
    hooks = optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks
    kept = [dict(hook) for hook in hooks]
    for owner, name, _, original in wrappers:
        # pybind's methods are bound by an object that the class no longer has.
        method = not inspect.ismodule(owner) and not inspect.isfunction(original)
        setattr(owner, name, _bound(original) if method else original)
    for hook in hooks:
        hook.clear()
    try:
        yield
    finally:
        for owner, name, function, _ in wrappers:
            setattr(owner, name, function)
        for hook, content in zip(hooks, kept, strict=True):
            hook.update(content)


def _per_unit(work, count):
    # Processor time of the process: what others do on the machine, and the wait for
    # another rank, are not what the instruments cost.
    begin = time.process_time()
    work(count)
    return (time.process_time() - begin) / count


def _in_turns(work, count):
    """Processor seconds for one unit, as pairs: with the instruments and without."""
    work(count)
    with _bare():
        work(count)
    pairs = []
    for number in range(ROUNDS):
        # Whoever comes second finds warmer caches, so each does in turn.
        if number % 2:
            with _bare():
                without = _per_unit(work, count)
            pairs.append((_per_unit(work, count), without))
        else:
            mine = _per_unit(work, count)
            with _bare():
                pairs.append((mine, _per_unit(work, count)))
    return pairs


def _write(what, pairs):
    recorder = os.environ["TORCH_FR_BUFFER_SIZE"] != "0"
    with open(os.environ["BENCHMARK_RESULTS"], "a") as file:
        file.write(json.dumps({"what": what, "recorder": recorder, "pairs": pairs}) + "\n")


def _marks(world_size):
    for number, size in enumerate(RECORDERS):
        mark = pytest.mark.ddp(
            world_size=world_size,
            isolate=True,
            timeout=1200,
            env={"TORCH_FR_BUFFER_SIZE": size},
        )
        yield pytest.param(number, marks=mark)


@pytest.mark.parametrize("number", list(_marks(1)))
def test_call(ddp, number):
    torch.set_num_threads(1)
    tensor = torch.ones(1)

    def reduce(count):
        for _ in range(count):
            dist.all_reduce(tensor)

    _write("call", _in_turns(reduce, CALLS))


@pytest.mark.parametrize("number", list(_marks(2)))
def test_step(ddp, number):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(512, 512) for _ in range(6)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(64, 512)

    def train(count):
        for _ in range(count):
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            dist.all_reduce(loss.detach())  # the metric

    pairs = _in_turns(train, STEPS)
    if ddp.rank == 0:
        _write("step", pairs)
