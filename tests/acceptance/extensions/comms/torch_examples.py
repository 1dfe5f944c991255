"""An inner suite: what torch's own tests count with ``CommDebugMode``, by ``ddp.comms``.

The models are those of torch's tests, and the numbers are copied from the files that are named.
"""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed._tensor.common_dtensor import (
    MLPModule,
    ModelArgs,
    Transformer,
    TransformerBlock,
)

both = pytest.mark.ddp(world_size=[2, 4])
BLOCKS = 2
"""Number of blocks of the transformer."""


def sharded(**options):
    torch.manual_seed(42)
    model = Transformer(ModelArgs(dropout_p=0.0))
    for module in model.modules():
        if isinstance(module, TransformerBlock):
            fully_shard(module, **options)
    return fully_shard(model, **options)


def forward_and_backward(ddp, model, between=lambda: None):
    with ddp.comms(model) as forward:
        loss = model(torch.randint(0, ModelArgs().vocab_size, (2, 16)))
    between()
    with ddp.comms(model) as backward:
        loss.sum().backward()
    return forward.counts(), backward.counts()


# test/distributed/_composable/fsdp/test_fully_shard_comm.py: test_fully_shard_communication_count
@both
@pytest.mark.parametrize(
    ("reshards", "gathers"), [(True, BLOCKS + 1), (False, 0), (None, BLOCKS), (2, BLOCKS + 1)]
)
def test_fully_shard(ddp, reshards, gathers):
    if reshards == ddp.world_size:
        reshards = True
    forward, backward = forward_and_backward(ddp, sharded(reshard_after_forward=reshards))
    assert forward == {"all_gather": BLOCKS + 1}
    expected = {"all_gather": gathers} if gathers else {}
    assert backward == {**expected, "reduce_scatter": BLOCKS + 1}


# the same: test_manual_reshard_with_reshard_after_forward_false
@both
def test_reshard_by_hand(ddp):
    model = sharded(reshard_after_forward=False)

    def reshard():
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    forward, backward = forward_and_backward(ddp, model, reshard)
    assert forward == {"all_gather": BLOCKS + 1}
    assert backward == {"all_gather": BLOCKS + 1, "reduce_scatter": BLOCKS + 1}


# test/distributed/tensor/parallel/test_tp_examples.py: test_mlp_training
@both
@pytest.mark.parametrize(
    ("sequence", "counts"),
    [(True, {"all_gather": 2, "reduce_scatter": 1}), (False, {"all_reduce": 1})],
)
def test_tensor_parallel(ddp, sequence, counts):
    mesh = init_device_mesh("cpu", (ddp.world_size,))
    layouts = {"input_layouts": Shard(0)}, {"output_layouts": Shard(0)}
    first, last = layouts if sequence else ({}, {})
    plan = {"net1": ColwiseParallel(**first), "net2": RowwiseParallel(**last)}
    model = parallelize_module(MLPModule("cpu"), mesh, plan)
    with ddp.comms(model) as comms:
        model(torch.rand(8, 10)).sum().backward()
    assert comms.counts() == counts


# test/distributed/tensor/debug/test_comm_mode.py: test_comm_mode, test_comm_mode_coalesced
@both
@pytest.mark.parametrize("coalesced", [False, True])
def test_functional(ddp, coalesced):
    group = dist.group.WORLD
    with ddp.comms() as comms:
        x = funcol.all_gather_tensor(torch.randn(20, 10), 0, group)
        x = funcol.reduce_scatter_tensor(x, "sum", 0, group)
        if coalesced:
            funcol.all_reduce_coalesced([x], "sum", group)
        else:
            funcol.all_reduce(x, "sum", group)
    assert comms.counts() == {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 1}


# the same: test_comm_mode_with_dtensor
@both
def test_dtensor(ddp):
    mesh = init_device_mesh("cpu", (ddp.world_size,))
    x = DTensor.from_local(torch.randn(4, 4 * ddp.world_size), mesh, [Shard(0)], run_check=False)
    y = DTensor.from_local(torch.randn(4, 32), mesh, [Shard(0)], run_check=False)
    with ddp.comms() as comms:
        torch.mm(x, y)
    assert comms.counts() == {"all_gather": 1}
