"""An inner suite: programs that rely on a collective that does not wait, and their legal twins."""

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.ddp(world_size=3, portable="nccl")

OPERATIONS = {
    "broadcast": lambda one, several: dist.broadcast(one, 0),
    "scatter": lambda one, several: dist.scatter(one, several, 0),
    "gather": lambda one, several: dist.gather(one, several, 0),
    "objects": lambda one, several: dist.broadcast_object_list([1], 0),
    "awaited": lambda one, several: dist.broadcast(one, 0, async_op=True).wait(),
}
each_operation = pytest.mark.parametrize("operation", OPERATIONS)
# On gloo, too, the second of the two broadcasts of objects needs a root that waits in the first.
RELYING = [operation for operation in OPERATIONS if operation != "objects"]


def call(operation, rank):
    several = [torch.ones(4) for _ in range(3)] if rank == 0 else None
    OPERATIONS[operation](torch.ones(4), several)


@pytest.mark.parametrize("operation", RELYING)
def test_relies_on_it(ddp, operation):
    header = torch.ones(1)
    if ddp.rank == 2:
        dist.recv(header, src=1)  # first
    call(operation, ddp.rank)
    if ddp.rank == 1:
        dist.send(header, dst=2)


def test_relies_on_it_between_groups(ddp):
    pair = dist.new_group([1, 2])
    if ddp.rank == 2:
        dist.all_reduce(torch.ones(1), group=pair)
    dist.broadcast(torch.ones(4), src=0)
    if ddp.rank == 1:
        dist.all_reduce(torch.ones(1), group=pair)


@each_operation
def test_message_after_it(ddp, operation):
    header = torch.ones(1)
    call(operation, ddp.rank)
    if ddp.rank == 1:
        dist.send(header, dst=2)
    if ddp.rank == 2:
        dist.recv(header, src=1)


@each_operation
def test_message_before_it(ddp, operation):
    header = torch.ones(1)
    if ddp.rank == 1:
        dist.send(header, dst=2)
    if ddp.rank == 2:
        dist.recv(header, src=1)
    call(operation, ddp.rank)


def test_on_a_group_of_gloo(ddp):
    control = dist.new_group(backend="gloo")
    header = torch.ones(1)
    if ddp.rank == 2:
        dist.recv(header, src=1, group=control)
    dist.broadcast(torch.ones(4), src=0, group=control)
    if ddp.rank == 1:
        dist.send(header, dst=2, group=control)


def test_pipeline(ddp):
    activations = torch.ones(4)
    for _ in range(3):
        if ddp.rank > 0:
            dist.recv(activations, src=ddp.rank - 1)
        if ddp.rank < 2:
            dist.send(activations, dst=ddp.rank + 1)
        dist.broadcast(activations, src=2)
