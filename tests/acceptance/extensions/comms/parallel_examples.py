"""An inner suite: what libraries communicate, against arithmetic on paper.

A layer has 8 * 8 + 8 = 72 parameters, which is 288 bytes, and shards evenly on 2 and 4 ranks.
"""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from example_models import Net, batch_norm, fsdp1, fsdp2, step, tensor_parallel
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

LAYER = 288

two = pytest.mark.ddp(world_size=2)
both = pytest.mark.ddp(world_size=[2, 4])
four = pytest.mark.ddp(world_size=4)


RUNS = {
    "once": lambda forward, x: forward(x),
    "recomputed": lambda forward, x: checkpoint(forward, x, use_reentrant=False),
    "reentrant": lambda forward, x: checkpoint(forward, x, use_reentrant=True),
    "nested": lambda forward, x: checkpoint(
        lambda x: checkpoint(forward, x, use_reentrant=False), x, use_reentrant=False
    ),
}
"""How a forward runs: torch's checkpoint runs it once more in backward."""


# ------------------------------------------------------------------ DDP


@both
def test_ddp(ddp):
    model = DistributedDataParallel(Net())
    with ddp.comms(model) as comms:
        step(model)
    assert comms.counts() == {"all_reduce": 1}
    assert comms.counts(forms=True) == {"c++.all_reduce": 1}
    assert comms.bytes == 2 * LAYER
    (record,) = comms
    names = [f"layers.{n}.{kind}" for n in (0, 1) for kind in ("weight", "bias")]
    assert sorted(record.belongs_to) == sorted(names)
    assert (record.elements, record.dtype, record.reduce_op) == (144, "float32", "SUM")
    assert record.phase == "backward"
    assert record.is_async
    assert not record.cpu_form


@both
def test_ddp_rebuilds_its_buckets_in_the_second_step(ddp):
    model = DistributedDataParallel(Net(), bucket_cap_mb=1e-5)
    found = []
    for _ in range(3):
        with ddp.comms(model) as comms:
            step(model)
        found.append(comms.counts())
    rebuilt = {"all_reduce": 4}  # a bucket for each parameter
    assert found == [{"all_reduce": 1}, {"broadcast": 2} | rebuilt, rebuilt]
    assert [record.belongs_to for record in comms] == [
        (f"layers.{n}.{kind}",) for n in (1, 0) for kind in ("bias", "weight")
    ]
    assert [record.bytes for record in comms] == [32, 256, 32, 256]
    comms.assert_before("all_reduce", "backward", module="layers.0")


@both
def test_ddp_with_a_static_graph(ddp):
    model = DistributedDataParallel(Net(), bucket_cap_mb=1e-5, static_graph=True)
    found = []
    for _ in range(4):
        with ddp.comms(model) as comms:
            step(model)
        found.append(comms.counts())
    rebuilt = {"all_reduce": 4}
    # The first step also reduces which parameters were used.
    assert found == [{"all_reduce": 2}, {"all_reduce": 1}, {"broadcast": 2} | rebuilt, rebuilt]


@both
def test_ddp_warmup(ddp):
    model = DistributedDataParallel(Net(), bucket_cap_mb=1e-5)
    with ddp.comms(model, warmup=2) as comms:
        for _ in range(4):
            step(model)
    assert comms.counts() == {"all_reduce": 8}
    assert {record.step for record in comms} == {3, 4}


@both
def test_ddp_that_looks_for_unused_parameters(ddp):
    model = DistributedDataParallel(Net(), find_unused_parameters=True)
    with ddp.comms(model) as comms:
        step(model)
    assert comms.counts() == {"all_reduce": 2}
    gradients, used = sorted(comms, key=lambda record: -record.bytes)
    assert gradients.bytes == 2 * LAYER
    assert (used.dtype, used.elements, used.belongs_to) == ("int32", 4, None)


@both
def test_no_sync_reduces_nothing(ddp):
    model = DistributedDataParallel(Net())
    with ddp.comms(model) as comms:
        with model.no_sync():
            step(model)
        assert comms.counts() == {}
        step(model)
    assert comms.counts() == {"all_reduce": 1}


@both
def test_batch_norm_broadcasts_under_no_sync_too(ddp):
    model = batch_norm()
    with ddp.comms(model) as comms, model.no_sync():
        step(model)
    # The means and variances, and the number of batches, of another dtype.
    assert comms.counts() == {"broadcast": 2}
    assert sorted(record.bytes for record in comms) == [8, 2 * 8 * 4]


@both
def test_ddp_comm_hook(ddp):
    model = DistributedDataParallel(Net())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    with ddp.comms(model) as comms:
        step(model)
    assert comms.counts(forms=True) == {"all_reduce": 1}
    (record,) = comms
    assert (record.dtype, record.bytes) == ("float16", LAYER)
    assert len(record.belongs_to) == 4


@both
def test_zero_redundancy_optimizer(ddp):
    model = DistributedDataParallel(Net(ddp.world_size))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    step(model)
    with ddp.comms(model) as comms:
        optimizer.step()
    # Each parameter from the rank that has its state.
    assert comms.counts() == {"broadcast": 2 * ddp.world_size}
    assert comms.bytes == ddp.world_size * LAYER


# ------------------------------------------------------------------ FSDP


@both
@pytest.mark.parametrize("reshards", [True, False])
def test_fsdp2(ddp, reshards):
    # torch's test_fully_shard_comm.py: an all_gather for each module in forward, another in
    # backward if it reshards, a reduce_scatter for each in backward.
    model = fsdp2(3, reshard_after_forward=reshards)
    with ddp.comms(model) as comms:
        step(model)
    gathers = 6 if reshards else 3
    assert comms.counts() == {"all_gather": gathers, "reduce_scatter": 3}
    assert comms.counts(forms=True) == {
        "all_gather_into_tensor": gathers,
        "reduce_scatter_tensor": 3,
    }
    assert comms.bytes == (gathers + 3) * LAYER
    each = {"all_gather": gathers // 3, "reduce_scatter": 1}
    assert comms.by_module() == {f"layers.{n}": each for n in range(3)}
    comms.assert_before("all_gather", "forward", belongs_to="layers.1")
    with pytest.raises(AssertionError, match=r"reduce_scatter of layers.1 comes after"):
        comms.assert_before("reduce_scatter", "forward", belongs_to="layers.1")


@both
def test_fsdp2_in_the_order_of_a_step(ddp):
    model = fsdp2(3)
    with ddp.comms(model) as comms:
        step(model)
    expected = [
        *(("all_gather", n, n, "forward") for n in (0, 1, 2)),
        ("all_gather", 2, 2, "backward"),
        ("all_gather", 1, 2, "backward"),  # prefetched
        ("reduce_scatter", 2, 2, "backward"),
        ("all_gather", 0, 1, "backward"),
        ("reduce_scatter", 1, 1, "backward"),
        ("reduce_scatter", 0, 0, "backward"),
    ]
    assert [(r.operation, r.belongs_to, r.issued_in, r.phase) for r in comms] == [
        (operation, f"layers.{served}", f"layers.{issuer}", phase)
        for operation, served, issuer, phase in expected
    ]


@both
def test_fsdp2_that_prefetches_forward(ddp):
    model = fsdp2(3)
    model.layers[0].set_modules_to_forward_prefetch([model.layers[1]])
    with ddp.comms(model) as comms:
        step(model)
    first = next(record for record in comms if record.belongs_to == "layers.1")
    assert first.issued_in == "layers.0"
    comms.assert_before("all_gather", "forward", belongs_to="layers.1", module="layers.0")
    with pytest.raises(AssertionError, match=r"all_gather of layers.2 comes after forward of"):
        comms.assert_before("all_gather", "forward", belongs_to="layers.2", module="layers.0")


@two
@pytest.mark.parametrize("way", RUNS)
def test_a_recomputed_forward_is_no_step(ddp, way):
    model = fully_shard(Net())
    with ddp.comms(model, warmup=1) as comms:
        for _ in range(3):
            RUNS[way](model, torch.ones(2, 8, requires_grad=True)).sum().backward()
    one_step = [("all_gather", "forward"), ("reduce_scatter", "backward")]
    assert [(r.operation, r.phase) for r in comms] == 2 * one_step
    assert [r.step for r in comms] == [2, 2, 3, 3]
    assert {(r.issued_in, r.belongs_to) for r in comms} == {("", "")}


@two
@pytest.mark.parametrize("way", RUNS)
def test_recomputed_layers_gather_as_others(ddp, way):
    model = fsdp2(2)

    def forward(x):
        for layer in model.layers:
            x = RUNS[way](layer, x)
        return x

    model.forward = forward
    with ddp.comms(model) as comms:
        for _ in range(2):
            model(torch.ones(2, 8, requires_grad=True)).sum().backward()
    passes = ["forward"] * 2 + ["backward"] * 2
    assert [r.phase for r in comms.of("all_gather")] == 2 * passes
    assert [r.step for r in comms] == [1] * 6 + [2] * 6


@both
def test_fsdp2_accumulates_without_reducing(ddp):
    model = fully_shard(Net())
    model.set_requires_gradient_sync(False)
    with ddp.comms(model) as comms:
        step(model)
    assert "reduce_scatter" not in comms.counts()


@four
def test_hsdp(ddp):
    # torch's own count: FSDP's on the shard dimension, an all_reduce of each shard on the other.
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = fsdp2(mesh=mesh)
    with ddp.comms(model) as comms:
        step(model)
    assert comms.on(mesh["shard"]).counts() == {"all_gather": 4, "reduce_scatter": 2}
    assert comms.on("replicate").counts() == {"all_reduce": 2}
    assert comms.on("replicate").bytes == 2 * LAYER // 2
    assert comms.on(mesh["shard"]).bytes == 6 * LAYER
    assert {record.belongs_to for record in comms.of("all_reduce")} == {"layers.0", "layers.1"}


@both
def test_fsdp1(ddp):
    model = fsdp1()
    step(model)
    with ddp.comms(model) as comms:
        step(model)
    # The outermost has no parameters; the last layer is gathered anew for its backward.
    assert comms.counts() == {"all_gather": 4, "reduce_scatter": 2}
    assert comms.by_module() == {
        f"layers.{n}": {"all_gather": 2, "reduce_scatter": 1} for n in range(2)
    }
    assert comms.bytes == 6 * LAYER
    # A list on a CPU, one tensor elsewhere.
    assert all(record.cpu_form for record in comms.of("all_gather"))
    assert not any(record.cpu_form for record in comms.of("reduce_scatter"))
    assert "torch asks for something else" in comms.table()


# ------------------------------------------------------------------ tensors, pipelines, checkpoints


@both
def test_tensor_parallel(ddp):
    # torch's tests of its CommDebugMode: an all_reduce in forward, another in backward.
    mesh = init_device_mesh("cpu", (ddp.world_size,), mesh_dim_names=("tp",))
    model = tensor_parallel(mesh)
    inputs = torch.ones(4, 8, requires_grad=True)
    with ddp.comms(model) as comms:
        model(inputs).sum().backward()
    assert comms.counts(forms=True) == {"functional.all_reduce": 2}
    assert [record.bytes for record in comms] == [4 * 8 * 4, 4 * 8 * 4]
    assert [(record.issued_in, record.phase) for record in comms] == [
        ("2", "forward"),
        ("0", "backward"),
    ]
    assert comms.on(mesh["tp"]) == comms


@both
def test_shards_of_another_dimension(ddp):
    mesh = init_device_mesh("cpu", (ddp.world_size,))
    tensor = distribute_tensor(torch.ones(4, 8), mesh, [Shard(0)])
    with ddp.comms() as comms:
        tensor.redistribute(mesh, [Shard(1)]).to_local()
    assert comms.counts() == {"all_gather": 1}
    assert comms.cpu_forms == list(comms)
    assert comms.bytes == 4 * 8 * 4


@both
def test_pipeline(ddp):
    first, last = ddp.rank == 0, ddp.rank == ddp.world_size - 1
    stage = PipelineStage(torch.nn.Linear(8, 8), ddp.rank, ddp.world_size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=torch.nn.functional.mse_loss)

    def run():
        args = (torch.ones(4, 8),) if first else ()
        schedule.step(*args, **({"target": torch.ones(4, 8)} if last else {}))

    run()  # the first one also sends shapes
    with ddp.comms() as comms:
        run()
    neighbours = 2 - first - last
    assert comms.counts() == {"send": 2 * neighbours, "recv": 2 * neighbours}
    assert comms.bytes == 4 * neighbours * 2 * 8 * 4
    ends = {ddp.rank - 1, ddp.rank + 1} & {*range(ddp.world_size)}
    assert {record.peer for record in comms} == ends


@both
def test_checkpoint(ddp, tmp_path):
    model = fully_shard(Net())
    with ddp.comms(model) as comms:
        dcp.save({"model": model.state_dict()}, checkpoint_id=tmp_path / "saved")
    # Plans and results are objects: none of the weights crosses ranks.
    assert comms.bytes == 0
    assert {record.bytes for record in comms} == {None}
    assert comms.of("gather_object").counts() == {"gather_object": 2}
    assert comms.of("scatter_object_list").counts() == {"scatter_object_list": 1}
    assert all(record.cpu_form for record in comms)
