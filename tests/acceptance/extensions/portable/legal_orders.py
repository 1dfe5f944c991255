"""An inner suite: libraries, orders and handles that are right on NCCL.

``mutants.py`` makes wrong programs of them.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as dcp
import torch.distributed.nn
from example_models import Net, batch_norm, fsdp1, fsdp2, step, tensor_parallel
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

two = pytest.mark.ddp(world_size=2, portable="nccl")
four = pytest.mark.ddp(world_size=4, portable="nccl")
mixed = pytest.mark.ddp(world_size=2, portable="cpu:gloo,cuda:nccl")


@pytest.fixture
def again():
    """A second group of all ranks."""
    group = dist.new_group(group_desc="again")
    yield group
    dist.destroy_process_group(group)


@pytest.fixture
def gloo():
    group = dist.new_group(backend="gloo", group_desc="gloo")
    yield group
    dist.destroy_process_group(group)


def ones():
    return torch.ones(4)


# ------------------------------------------------------------------ data parallel


@two
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"bucket_cap_mb": 1e-5},
        {"static_graph": True, "bucket_cap_mb": 1e-5},
        {"find_unused_parameters": True},
        {"gradient_as_bucket_view": True},
    ],
    ids=str,
)
def test_ddp(ddp, given):
    model = DistributedDataParallel(Net(), **given)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        step(model, 1)
        optimizer.step()
        optimizer.zero_grad()


@two
def test_ddp_on_a_group_beside_metrics_on_another(ddp, again):
    model = DistributedDataParallel(Net(), process_group=again, bucket_cap_mb=1e-5)
    for _ in range(3):
        step(model, 1)
        dist.all_reduce(ones())
        dist.reduce(ones(), 0)


@two
def test_accumulation(ddp):
    model = DistributedDataParallel(Net())
    with model.no_sync():
        step(model, 2)
    step(model, 2)


@two
@pytest.mark.parametrize("hook", ["plain", "fp16", "power", "future", "then"])
def test_comm_hooks(ddp, hook):
    def mine(_state, bucket):
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        if hook == "future":
            return future.then(lambda done: done.value()[0])
        return future.then(lambda done: done.value()[0] / 2)

    model = DistributedDataParallel(Net())
    if hook == "plain":
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    elif hook == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "power":
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        model.register_comm_hook(None, mine)
    step(model, 4)


@two
def test_uneven_inputs(ddp):
    model = DistributedDataParallel(Net())
    with Join([model]):
        step(model, 2 + ddp.rank)


@two
def test_batch_norm_over_ranks(ddp):
    step(batch_norm(), 2)


@two
@pytest.mark.parametrize("overlaps", [False, True])
def test_zero_redundancy_optimizer(ddp, overlaps):
    model = DistributedDataParallel(Net())
    zero = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, lr=0.1, parameters_as_bucket_view=overlaps
    )
    for _ in range(3):
        step(model, 1)
        zero.step()
    zero.consolidate_state_dict()


@two
def test_gradients_in_one_flat_buffer(ddp):
    flat = torch.ones(64)
    handles = [dist.all_reduce(part, async_op=True) for part in flat.split(16)]
    for handle in handles:
        handle.wait()


# ------------------------------------------------------------------ shards


@two
@pytest.mark.parametrize("prefetches", [False, True])
def test_fsdp2(ddp, prefetches):
    model = fsdp2(3)
    if prefetches:
        model.layers[0].set_modules_to_forward_prefetch([model.layers[1], model.layers[2]])
        model.layers[2].set_modules_to_backward_prefetch([model.layers[1]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        step(model, 1)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@two
def test_fsdp1(ddp):
    step(fsdp1(), 2)


@four
def test_hsdp(ddp):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    step(fsdp2(mesh=mesh), 2)


@four
def test_fsdp2_with_tensor_parallel(ddp):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    step(fully_shard(tensor_parallel(mesh["tp"]), mesh=mesh["dp"]), 2)
    dist.all_reduce(ones())


@two
def test_tensors_that_are_redistributed(ddp):
    mesh = init_device_mesh("cpu", (2,))
    tensor = distribute_tensor(torch.ones(4, 8), mesh, [Shard(0)])
    tensor.redistribute(mesh, [Shard(1)]).redistribute(mesh, [Replicate()]).to_local().sum()
    (tensor @ tensor.T).full_tensor()


# ------------------------------------------------------------------ pipelines and messages


@four
@pytest.mark.parametrize("schedule", [ScheduleGPipe, Schedule1F1B])
def test_pipelines_beside_data_parallel(ddp, schedule):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    pp, dp = mesh["pp"].get_group(), mesh["dp"].get_group()
    rank = mesh["pp"].get_local_rank()
    inner = torch.nn.Linear(8, 8)
    stage = PipelineStage(inner, rank, 2, torch.device("cpu"), group=pp)
    pipeline = schedule(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
    for _ in range(2):
        args = (torch.ones(8, 8),) if rank == 0 else ()
        pipeline.step(*args, **({"target": torch.ones(8, 8)} if rank else {}))
        for parameter in inner.parameters():
            dist.all_reduce(parameter.grad, group=dp)
        dist.all_reduce(ones())


@four
def test_messages_on_world_between_collectives_of_stages(ddp):
    stages = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    stage, peer = stages[ddp.rank // 2], (ddp.rank + 2) % 4
    if ddp.rank < 2:
        dist.send(ones(), peer)
        dist.all_reduce(ones(), group=stage)
        dist.recv(ones(), peer)
    else:
        dist.recv(ones(), peer)
        dist.all_reduce(ones(), group=stage)
        dist.send(ones(), peer)
    dist.destroy_process_group(stage)


@two
def test_a_ring_in_batches(ddp):
    peer, got = 1 - ddp.rank, ones()
    for _ in range(3):
        pair = [dist.P2POp(dist.isend, ones(), peer), dist.P2POp(dist.irecv, got, peer)]
        for request in dist.batch_isend_irecv(pair):
            request.wait()
        dist.all_reduce(ones())


@two
def test_a_message_in_flight(ddp):
    if ddp.rank == 0:
        request = dist.isend(ones(), 1)
        dist.all_reduce(ones())
        request.wait()
    else:
        dist.recv(ones(), 0)
        dist.all_reduce(ones())


@two
def test_a_message_and_then_a_collective(ddp):
    if ddp.rank == 0:
        request = dist.isend(ones(), 1)
        request.wait()
    else:
        dist.recv(ones(), 0)
    dist.all_reduce(ones())


# ------------------------------------------------------------------ checkpoints and objects


@two
def test_checkpoint(ddp, tmp_path):
    model = fully_shard(Net())
    dcp.save({"model": model.state_dict()}, checkpoint_id=tmp_path / "saved")
    dcp.load({"model": model.state_dict()}, checkpoint_id=tmp_path / "saved")


@two
def test_checkpoint_in_another_thread(ddp, tmp_path, gloo):
    model = fully_shard(Net())
    saved = dcp.async_save(
        {"model": model.state_dict()}, checkpoint_id=tmp_path / "saved", process_group=gloo
    )
    step(model, 2)
    dist.all_reduce(ones())
    saved.result()


@two
def test_objects(ddp, again):
    found = [None, None]
    dist.all_gather_object(found, ddp.rank)
    dist.broadcast_object_list(found, 0, group=again)
    dist.gather_object("x", found if ddp.rank == 0 else None)
    dist.scatter_object_list([None], ["a", "b"] if ddp.rank == 0 else None)


@mixed
def test_objects_go_by_gloo_where_there_is_one(ddp, again):
    found = [None, None]
    handle = dist.all_reduce(ones(), async_op=True)
    if ddp.rank == 0:
        dist.broadcast_object_list(found, 0, group=again)
        other = dist.all_reduce(ones(), async_op=True)
    else:
        other = dist.all_reduce(ones(), async_op=True)
        dist.broadcast_object_list(found, 0, group=again)
    handle.wait()
    other.wait()


@two
def test_groups_that_name_gloo_stay_gloo(ddp, gloo):
    first, second = (None, gloo) if ddp.rank else (gloo, None)
    handles = [dist.all_reduce(ones(), group=group, async_op=True) for group in (first, second)]
    for handle in handles:
        handle.wait()
    dist.all_reduce(ones(), group=gloo, async_op=True)
    dist.barrier(group=gloo)


# ------------------------------------------------------------------ handles


@two
def test_groups_in_one_order(ddp, again):
    x, y = ones(), ones()
    first = dist.all_reduce(x, async_op=True)
    second = dist.all_reduce(y, group=again, async_op=True)
    first.wait()
    second.wait()


@two
def test_two_groups_of_the_same_ranks(ddp):
    x, y, one, other = ones(), ones(), dist.new_group(), dist.new_group()
    first = dist.all_reduce(x, group=one, async_op=True)
    second = dist.all_reduce(y, group=other, async_op=True)
    first.wait()
    second.wait()


@two
def test_groups_one_after_the_other(ddp, again):
    x, y = ones(), ones()
    dist.broadcast(x, 0)
    dist.broadcast(y, 1, group=again)


@two
def test_groups_in_one_order_in_each_step(ddp, again):
    for _ in range(3):
        handles = [dist.all_reduce(ones(), async_op=True)]
        handles += [dist.all_reduce(ones(), group=again, async_op=True)]
        for handle in handles:
            handle.wait()


@two
def test_a_broadcast_of_each_rank(ddp, again):
    x, y = ones(), ones()
    first = dist.broadcast(x, 1, async_op=True)
    second = dist.all_gather([ones(), ones()], y, group=again, async_op=True)
    for handle in (first, second):
        handle.wait()


@four
def test_a_group_in_a_group(ddp):
    half = dist.new_group([0, 1])
    if ddp.rank < 2:
        first = dist.all_reduce(ones(), async_op=True)
        second = dist.all_reduce(ones(), group=half, async_op=True)
        second.wait()
    else:
        first = dist.all_reduce(ones(), async_op=True)
    first.wait()
    if ddp.rank < 2:
        dist.destroy_process_group(half)


@two
def test_handles_that_are_used_in_other_ways(ddp):
    completes = dist.all_reduce(ones(), async_op=True)
    while not completes.is_completed():
        pass
    dist.all_reduce(ones(), async_op=True).get_future().wait()
    dist.all_reduce(ones(), async_op=True).wait()
    futures = [dist.all_reduce(ones(), async_op=True).get_future() for _ in range(2)]
    torch.futures.wait_all(futures)
    waits = dist.all_reduce(ones(), async_op=True).wait
    waits()


kept = []


@two
def test_a_handle_that_is_kept(ddp):
    kept.append(dist.all_reduce(ones(), async_op=True))


@two
def test_a_handle_of_an_earlier_test(ddp):
    kept.pop().wait()


@two
def test_a_tensor_that_has_its_handle(ddp):
    tensor = ones()
    with functional.allow_inflight_collective_as_graph_input_ctx():
        dist.all_reduce(tensor, async_op=True)
    assert functional.wait_tensor(tensor).sum() == 8


@two
def test_in_a_block_of_comms(ddp):
    dist.all_reduce(ones())
    for _ in range(2):
        with ddp.comms() as comms:
            dist.all_reduce(ones())
        assert comms.counts() == {"all_reduce": 1}
    dist.all_reduce(ones())


@two
def test_coalesced(ddp):
    tensors = [ones(), ones()]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()


@two
def test_functional(ddp):
    functional.all_reduce(ones(), "sum", dist.group.WORLD).sum().item()
    gathered = functional.all_gather_tensor(ones(), 0, dist.group.WORLD)
    assert gathered.view(2, 4).sum() == 8
    torch.distributed.nn.all_reduce(torch.ones(4, requires_grad=True)).sum().backward()


@two
def test_compiled(ddp):
    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(x):
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    assert compiled(ones()).sum() == 20
    step(torch.compile(DistributedDataParallel(Net()), backend="aot_eager"), 2)


# ------------------------------------------------------------------ other people's


@two
def test_metrics_of_lightning(ddp, tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, _):
            loss = self.net(batch).sum()
            self.log("loss", loss, sync_dist=True, on_epoch=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=ddp.world_size,
        strategy="ddp",
        max_epochs=1,
        limit_train_batches=2,
        default_root_dir=tmp_path,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(8, 8), batch_size=2))


# ------------------------------------------------------------------ threads


@two
def test_threads_that_are_joined(ddp, again):
    for _ in range(2):
        dist.all_reduce(ones())
        thread = threading.Thread(target=dist.all_reduce, args=(ones(),), kwargs={"group": again})
        thread.start()
        thread.join()


@two
def test_a_pool(ddp, again):
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            dist.all_reduce(ones())
            pool.submit(dist.all_reduce, ones(), group=again).result()


@two
def test_a_wait_in_another_thread(ddp, again):
    handle = dist.all_reduce(ones(), async_op=True)
    thread = threading.Thread(target=handle.wait)
    thread.start()
    thread.join()
    dist.all_reduce(ones(), group=again)
