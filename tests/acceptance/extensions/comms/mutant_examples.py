"""An inner suite: one contract for a training step, broken by mutants and kept by their benign
variants."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.ddp(world_size=2)


def make_ddp():
    return DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    )


def make_fsdp():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def loss_of(model):
    return model(torch.ones(2, 8)).sum()


# ------------------------------------------------------------------ steps


def accumulate(model):
    with model.no_sync():
        loss_of(model).backward()
    loss_of(model).backward()


def accumulate_by_sum(model):
    """A benign variant: both losses in one backward."""
    with model.no_sync():
        first = loss_of(model)
    (first + loss_of(model)).backward()


def reduce_twice(model):
    accumulate(model)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def forget_no_sync(model):
    loss_of(model).backward()
    loss_of(model).backward()


def log_each_step(model):
    accumulate(model)
    dist.all_reduce(loss_of_nothing())


def log_locally(model):
    """A benign variant: nothing crosses ranks."""
    accumulate(model)
    float(loss_of_nothing())


def loss_of_nothing():
    return torch.zeros(1)


def train(model):
    loss_of(model).backward()


def save_by_shard(model):
    """A benign variant: each rank reads its own shards."""
    train(model)
    return [parameter.to_local().sum() for parameter in model.parameters()]


def gather_all(model):
    train(model)
    return [parameter.full_tensor().sum() for parameter in model.parameters()]


@pytest.mark.parametrize(
    "step",
    [accumulate, accumulate_by_sum, reduce_twice, forget_no_sync, log_each_step, log_locally],
)
def test_ddp(ddp, step):
    model = make_ddp()
    with ddp.comms(model) as comms:
        step(model)
    assert comms.counts() == {"all_reduce": 1}
    assert comms.bytes == 2 * 288


@pytest.mark.parametrize("step", [train, save_by_shard, gather_all])
def test_fsdp(ddp, step):
    model = make_fsdp()
    with ddp.comms(model) as comms:
        step(model)
    assert comms.counts() == {"all_gather": 4, "reduce_scatter": 2}
