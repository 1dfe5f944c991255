"""Calls of torch under which five probes show where they are, on a rank and in pytest's process.

Data for ``test_places.py``: a test file whose ``test_on_rank`` and ``test_plain`` do the same and
write what they have seen.
"""

PLACES = '''
import inspect
import json
import logging
import os
import sys
import warnings

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

LOGGER = logging.getLogger("probed")
CPU = torch.device("cpu")
SEEN = []


def probe(*args, **kwargs):
    """Note each frame between the call that is probed and ``run``, as each probe sees it."""
    if SEEN:  # a second call of a hook
        return
    level = 1
    while not SEEN or SEEN[-1]["code"] != "run":
        level += 1
        frame = sys._getframe(level - 1)
        text = f"probe {level}"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            warnings.warn(text, stacklevel=level)
        records = []
        handler = logging.Handler()
        handler.emit = records.append
        LOGGER.addHandler(handler)
        LOGGER.warning("probe", stacklevel=level)
        LOGGER.removeHandler(handler)
        registry = frame.f_globals.pop("__warningregistry__", {})
        found = inspect.stack()[level - 1]
        SEEN.append(
            {
                "code": frame.f_code.co_name,
                "frame": (frame.f_code.co_filename, frame.f_lineno),
                "stack": (found.filename, found.lineno),
                "warning": [(warning.filename, warning.lineno) for warning in caught],
                "log": [(record.pathname, record.lineno) for record in records],
                "registry": [(key[0], key[2]) for key in registry if key != "version"],
            }
        )


class Probing(torch.nn.Linear):
    """Probes in one of the methods that torch calls."""

    def __init__(self, method=None):
        super().__init__(2, 2)
        self.method = method

    def _apply(self, *args, **kwargs):
        probe()
        return self

    def named_parameters(self, *args, **kwargs):
        self.probe_in("named_parameters")
        return super().named_parameters(*args, **kwargs)

    def named_modules(self, *args, **kwargs):
        self.probe_in("named_modules")
        return super().named_modules(*args, **kwargs)

    def forward(self, x):
        self.probe_in("forward")
        return super().forward(x)

    def probe_in(self, method):
        if getattr(self, "method", None) == method:
            probe()


class Mixin:
    def __init__(self):
        probe()


class Mixed(torch.nn.Module, Mixin):
    call_super_init = True


class Constructed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        probe()


class ProbingStep(torch.optim.SGD):
    def step(self, closure=None):
        probe()


def probing_helper(monkeypatch):
    monkeypatch.setattr(distributed_c10d, "_new_process_group_helper", probe)


def init_process_group(monkeypatch, tmp_path):
    probing_helper(monkeypatch)
    store = f"file://{tmp_path}/probed"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)


def new_group(monkeypatch, tmp_path):
    probing_helper(monkeypatch)
    dist.new_group([0])


def construction(monkeypatch, tmp_path):
    Constructed()


def construction_within(monkeypatch, tmp_path):
    Mixed()


def to(monkeypatch, tmp_path):
    Probing().to("cpu")


def to_by_its_class(monkeypatch, tmp_path):
    torch.nn.Module.to(Probing(), "cpu")


def cuda(monkeypatch, tmp_path):
    Probing().cuda()


def ddp_construction(monkeypatch, tmp_path):
    DistributedDataParallel(Probing("named_parameters"))


def ddp_forward(monkeypatch, tmp_path):
    DistributedDataParallel(Probing("forward"))(torch.ones(1, 2))


def ddp_later_forward(monkeypatch, tmp_path):
    model = DistributedDataParallel(Probing())
    model(torch.ones(1, 2)).sum().backward()
    model.module.method = "forward"
    model(torch.ones(1, 2))


def fsdp_construction(monkeypatch, tmp_path):
    inner = torch.nn.Sequential(torch.nn.Linear(2, 2))
    FullyShardedDataParallel(inner, auto_wrap_policy=probe, device_id=CPU)


def fsdp_forward(monkeypatch, tmp_path):
    FullyShardedDataParallel(Probing("forward"), device_id=CPU)(torch.ones(1, 2))


def of_mesh():
    return dist.init_device_mesh("cpu", (1,))


def fully_sharded(monkeypatch, tmp_path):
    fully_shard(torch.nn.Linear(2, 2), mesh=of_mesh(), shard_placement_fn=probe)


def fully_sharded_forward(monkeypatch, tmp_path):
    fully_shard(Probing("forward"), mesh=of_mesh())(torch.ones(1, 2))


def fully_sharded_first(monkeypatch, tmp_path):
    model = Probing("named_modules")
    with monkeypatch.context() as patch:
        patch.setattr(model, "method", "")
        fully_shard(model, mesh=of_mesh())
    model(torch.ones(1, 2))


def backward(monkeypatch, tmp_path):
    out = torch.ones(1, requires_grad=True) * 2
    out.register_hook(probe)
    out.backward()


def grad(monkeypatch, tmp_path):
    leaf = torch.ones(1, requires_grad=True)
    out = leaf * 2
    out.register_hook(probe)
    torch.autograd.grad(out, leaf)


def optimizer_step(monkeypatch, tmp_path):
    ProbingStep(torch.nn.Linear(2, 2).parameters(), 0.1).step()


def compilation(monkeypatch, tmp_path):
    def backend(graph, inputs):
        probe()
        return graph.forward

    torch.compile(torch.nn.Linear(2, 2), backend=backend)(torch.ones(2))


def probing_membership(monkeypatch):
    monkeypatch.setattr(distributed_c10d, "_rank_not_in_group", probe)


def collective(monkeypatch, tmp_path):
    probing_membership(monkeypatch)
    dist.all_reduce(torch.ones(1))


def deprecated_collective(monkeypatch, tmp_path):
    probing_membership(monkeypatch)
    dist.all_gather_coalesced([[torch.ones(1)]], [torch.ones(1)])


def reduce_scatter(monkeypatch, tmp_path):
    probing_membership(monkeypatch)
    dist.reduce_scatter(torch.ones(1), [torch.ones(1)])


def object_collective(monkeypatch, tmp_path):
    probing_membership(monkeypatch)
    dist.all_gather_object([None], 1)


def functional_collective(monkeypatch, tmp_path):
    monkeypatch.setattr(functional, "_resolve_group", probe)
    functional.all_reduce(torch.ones(1), "sum", dist.group.WORLD)


CALLS = {
    call.__name__: call
    for call in (
        *(init_process_group, new_group, construction, construction_within, to, to_by_its_class),
        *(cuda, ddp_construction, ddp_forward, ddp_later_forward, fsdp_construction, fsdp_forward),
        *(fully_sharded, fully_sharded_forward, fully_sharded_first, backward, grad),
        *(optimizer_step, compilation, collective, deprecated_collective, reduce_scatter),
        *(object_collective, functional_collective),
    )
}


def run(name, where, monkeypatch, tmp_path):
    SEEN.clear()
    try:
        CALLS[name](monkeypatch, tmp_path)
    except Exception as error:  # the probe returns nothing that torch could go on with
        if not SEEN:
            raise
    with open(f"{where}-{name}.json", "w") as stream:
        json.dump(SEEN, stream)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.ddp(world_size=1)
def test_on_rank(ddp, name, monkeypatch, tmp_path):
    if name == "init_process_group":
        dist.destroy_process_group()
    run(name, "rank", monkeypatch, tmp_path)


@pytest.mark.parametrize("name", CALLS)
def test_plain(name, monkeypatch, tmp_path):
    if name != "init_process_group":
        store = f"file://{tmp_path}/store"
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        run(name, "plain", monkeypatch, tmp_path)
    finally:
        monkeypatch.undo()
        if dist.is_initialized():
            dist.destroy_process_group()
'''

CALLS = (
    *("init_process_group", "new_group", "construction", "construction_within", "to"),
    *("to_by_its_class", "cuda", "ddp_construction", "ddp_forward", "ddp_later_forward"),
    *("fsdp_construction", "fsdp_forward", "fully_sharded", "fully_sharded_forward"),
    *("fully_sharded_first", "backward", "grad", "optimizer_step", "compilation"),
    *("collective", "deprecated_collective", "reduce_scatter", "object_collective"),
    "functional_collective",
)
