"""An inner suite: each way to communicate, and how it is recorded."""

import copy
import gc
import shutil
import threading
import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

two = pytest.mark.ddp(world_size=2)
pytestmark = two
ones = torch.ones
compiler = pytest.mark.skipif(
    not (shutil.which("c++") or shutil.which("g++")), reason="Inductor compiles with c++"
)


def only(comms):
    (record,) = comms
    return record


def test_forms_of_all_reduce(ddp):
    world = dist.group.WORLD
    with ddp.comms() as comms:
        dist.all_reduce(ones(4))
        dist.all_reduce(ones(4), op=dist.ReduceOp.MAX, async_op=True).wait()
        world.allreduce([ones(4)]).wait()
        functional.all_reduce(ones(4), "sum", world).wait()
        with dist._coalescing_manager():
            for size in (4, 2):
                dist.all_reduce(ones(size))
    assert comms.counts() == {"all_reduce": 5}
    assert comms.counts(forms=True) == {
        "all_reduce": 3,
        "functional.all_reduce": 1,
        "all_reduce_coalesced": 1,
    }
    records = list(comms)
    assert [record.is_async for record in records] == [False, True, True, True, False]
    assert [record.reduce_op for record in records] == ["SUM", "MAX", "SUM", "SUM", "SUM"]
    assert [record.tensors for record in records] == [1, 1, 1, 1, 2]
    assert [record.bytes for record in records] == [16, 16, 16, 16, 24]
    assert comms.of("all_reduce_coalesced").bytes == 24
    assert {record.group for record in comms} == {"world"}
    assert {record.members for record in comms} == {(0, 1)}


@pytest.mark.parametrize(
    ("call", "operation", "form", "size"),
    [
        # all_gather: the output
        (lambda: dist.all_gather([ones(4), ones(4)], ones(4)), "all_gather", "all_gather", 32),
        (
            lambda: dist.all_gather_into_tensor(ones(8), ones(4)),
            *("all_gather", "all_gather_into_tensor", 32),
        ),
        # reduce_scatter and all_to_all: the input
        (
            lambda: dist.reduce_scatter(ones(4), [ones(4), ones(4)]),
            *("reduce_scatter", "reduce_scatter", 32),
        ),
        (
            lambda: dist.reduce_scatter_tensor(ones(4), ones(8)),
            *("reduce_scatter", "reduce_scatter_tensor", 32),
        ),
        (
            lambda: dist.all_to_all_single(ones(4), ones(4)),
            *("all_to_all", "all_to_all_single", 16),
        ),
        (
            lambda: dist.all_to_all([ones(2), ones(2)], [ones(2), ones(2)]),
            *("all_to_all", "all_to_all", 16),
        ),
        # else the tensor
        (lambda: dist.broadcast(ones(4), 0), "broadcast", "broadcast", 16),
        (lambda: dist.reduce(ones(4), 0), "reduce", "reduce", 16),
        (
            lambda: dist.gather(ones(4), [ones(4), ones(4)] if dist.get_rank() == 0 else None),
            *("gather", "gather", 16),
        ),
        (
            lambda: dist.scatter(ones(4), [ones(4), ones(4)] if dist.get_rank() == 0 else None),
            *("scatter", "scatter", 16),
        ),
        (dist.barrier, "barrier", "barrier", 0),
        (dist.monitored_barrier, "monitored_barrier", "monitored_barrier", 0),
    ],
)
def test_bytes(ddp, call, operation, form, size):
    with ddp.comms() as comms:
        call()
    record = only(comms)
    assert (record.operation, record.form, record.bytes) == (operation, form, size)
    assert comms.of(form) == comms.of(operation) == comms
    assert not record.is_async
    rooted = operation in ("broadcast", "reduce", "gather", "scatter")
    assert record.root == (0 if rooted else None)


def test_functional_and_coalesced(ddp):
    world = dist.group.WORLD
    with ddp.comms() as comms:
        functional.all_gather_tensor(ones(4), 0, world).wait()
        functional.reduce_scatter_tensor(ones(4), "sum", 0, world).wait()
        functional.all_to_all_single(ones(4), None, None, world).wait()
        functional.broadcast(ones(4), 0, world).wait()
        for one in functional.all_gather_into_tensor_coalesced([ones(4), ones(2)], world):
            one.wait()
    assert comms.counts() == {
        "all_gather": 2,
        "reduce_scatter": 1,
        "all_to_all": 1,
        "broadcast": 1,
    }
    assert all(form.startswith("functional.") for form in comms.counts(forms=True))
    assert [record.bytes for record in comms] == [32, 16, 16, 16, 48]
    assert [record.tensors for record in comms] == [1, 1, 1, 1, 2]


def test_messages(ddp):
    other = 1 - ddp.rank
    with ddp.comms() as comms:
        if ddp.rank == 0:
            dist.send(ones(4), other)
        else:
            dist.recv(ones(4))
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, ones(2), other), dist.P2POp(dist.irecv, ones(2), other)]
        ):
            work.wait()
    first, send, recv = comms
    assert first.operation == ("recv" if ddp.rank else "send")
    assert first.peer == (-1 if ddp.rank else 1)
    assert not first.is_async
    assert (send.operation, send.peer, send.bytes, send.is_async) == ("send", other, 8, True)
    assert (recv.operation, recv.peer, recv.bytes, recv.is_async) == ("recv", other, 8, True)


def test_objects_are_one_record_of_no_size(ddp):
    both, root = [None, None], ddp.rank == 0
    with ddp.comms() as comms:
        for _ in range(2):
            dist.all_gather_object(both, {"rank": ddp.rank})
        dist.gather_object(1, both if root else None)
        dist.broadcast_object_list([1], 0)
        dist.scatter_object_list([None], [1, 2] if root else None)
    assert comms.counts() == {
        "all_gather_object": 2,
        "gather_object": 1,
        "broadcast_object_list": 1,
        "scatter_object_list": 1,
    }
    assert {record.bytes for record in comms} == {None}
    assert comms.bytes == 0


def test_another_thread_in_inference_mode(ddp):
    thread = threading.Thread(target=lambda: dist.all_reduce(ones(4)))
    with ddp.comms() as comms, torch.inference_mode():
        thread.start()
        thread.join()
        dist.all_reduce(ones(2))
    assert [record.bytes for record in comms] == [16, 8]


@pytest.mark.filterwarnings("ignore")  # torch's own, of its compiler
@compiler
def test_inductor(ddp):
    @torch.compile(fullgraph=True)
    def compiled(x):
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    with ddp.comms() as comms:
        for _ in range(2):
            assert compiled(ones(4)).tolist() == [5] * 4
    assert comms.counts() == {"all_reduce": 2}
    assert all("test_forms.py:" in record.site for record in comms)


@pytest.mark.filterwarnings("ignore")
@compiler
def test_a_compiled_model_stays_whole(ddp):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    expected = compiled(ones(2, 4))
    with ddp.comms(model) as comms:
        assert torch.equal(compiled(ones(2, 4)), expected)
    assert comms.counts() == {}


def test_what_sends_nothing_is_no_record(ddp):
    with ddp.comms() as comms:
        with FakeTensorMode():
            dist.all_reduce(ones(4))
        dist.all_reduce(ones(4, device="meta"))
        ddp.barrier()
        ddp.gather(1)
        dist.new_group([0, 1])
    assert comms.counts() == {}


def test_groups(ddp):
    named = dist.new_group([0, 1], group_desc="my pair")
    plain = dist.new_group([0, 1])
    with ddp.comms() as comms:
        dist.all_reduce(ones(4), group=named)
        dist.all_reduce(ones(2), group=plain)
        dist.all_reduce(ones(1))
    assert [record.group for record in comms] == ["my pair", "ranks 0,1", "world"]
    assert [comms.on(group).bytes for group in (named, plain, dist.group.WORLD)] == [16, 8, 4]
    assert comms.on("my pair").bytes == 16
    assert comms.on("world") == comms.on(dist.group.WORLD) != comms.on(named)
    with pytest.raises(ValueError, match=r"no group 'tp' .* my pair, ranks 0,1, world"):
        comms.on("tp")


def test_the_line_is_the_users(ddp):
    with ddp.comms() as comms:
        dist.all_reduce(ones(1))  # here
    lines = Path(__file__).read_text().splitlines()
    file, _, line = only(comms).site.rpartition(":")
    assert file == __file__
    assert lines[int(line) - 1].endswith("# here")


def test_equal_is_what_was_communicated(ddp):
    def record(*sizes):
        with ddp.comms() as comms:
            for size in sizes:
                dist.all_reduce(ones(size))
        return comms

    assert record(1, 2) == record(1, 2)
    assert record(1, 2) != record(2, 1)
    assert record(1) != record(1, 1)


def test_a_work_lives_no_longer(ddp):
    with ddp.comms():
        tensor = ones(4)
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        alive = weakref.ref(work), weakref.ref(tensor)
        del work, tensor
        gc.collect()
        assert alive[0]() is None
        while alive[1]() is not None:  # until gloo's thread has let go of it
            gc.collect()


def test_unseen_before_and_after_the_block(ddp):
    dist.all_reduce(ones(1))
    with ddp.comms() as comms:
        dist.all_reduce(ones(2))
    dist.all_reduce(ones(4))
    assert comms.bytes == 8


def fail_after(call, *args):
    call(*args)
    raise ZeroDivisionError("mine")


def test_an_error_in_the_block_is_the_tests(ddp):
    comms = ddp.comms()
    with pytest.raises(ZeroDivisionError, match="mine"), comms:
        fail_after(dist.all_reduce, ones(1))
    assert comms.counts() == {"all_reduce": 1}


@pytest.fixture
def recorded(ddp):
    with ddp.comms() as comms:
        yield comms


def test_a_fixture_of_the_test_may_hold_the_block(recorded):
    dist.all_reduce(ones(1))
    assert recorded.counts() == {"all_reduce": 1}


def test_a_block_on_one_rank(ddp):
    if ddp.rank == 0:
        with ddp.comms() as comms:
            dist.all_reduce(ones(1))
        assert comms.counts() == {"all_reduce": 1}
    else:
        dist.all_reduce(ones(1))


def test_what_is_built_in_the_block_is_seen(ddp):
    with ddp.comms() as comms:
        mesh = dist.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        DistributedDataParallel(torch.nn.Linear(4, 4))
        FullyShardedDataParallel(torch.nn.Linear(4, 4), device_id=torch.device("cpu"))
        fully_shard(torch.nn.Linear(4, 4), mesh=mesh)
        own = dist.new_group([0, 1])
        dist.all_reduce(ones(1), group=own)
        dist.destroy_process_group(own)
        dist.new_group([ddp.rank], use_local_synchronization=True)
    assert comms.of("all_reduce").counts() == {"all_reduce": 1}
    assert comms.of("broadcast").bytes >= 80


class InPython(dist.ProcessGroup):
    """A group as libraries write them in Python: no call of it passes torch's dispatcher."""


def test_a_group_in_python_is_a_mark(ddp):
    own = InPython(ddp.rank, ddp.world_size)
    world = dist.distributed_c10d._world
    world.pg_map[own] = ("own", None)
    world.pg_names[own] = "own"
    try:
        with ddp.comms() as comms:
            pass
        with pytest.raises(ValueError, match="own is written in Python"):
            comms.on(own)
    finally:
        del world.pg_map[own], world.pg_names[own]
    assert comms.unseen == ("own",)
    assert "not seen: operations on own, written in Python" in comms.table()


def test_copies_of_a_model_have_no_hooks(ddp, tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    with ddp.comms(model) as comms:
        copied = copy.deepcopy(model)
        torch.save(model, tmp_path / f"{ddp.rank}.pt")
        loaded = torch.load(tmp_path / f"{ddp.rank}.pt", weights_only=False)
        for one in (copied, loaded, model):
            assert torch.equal(one(ones(2, 4)), model(ones(2, 4)))
        dist.all_reduce(ones(1))
    assert only(comms).step == 4
    copied(ones(2, 4))
    assert not any(hooks for module in model.modules() for hooks in module._forward_hooks)


def test_functions_of_a_model(ddp):
    model = torch.nn.Linear(4, 4)
    parameters = dict(model.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).sum()

    with ddp.comms(model):
        gradients = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, ones(3, 4))
        exported = torch.export.export(model, (ones(2, 4),)).module()
    assert gradients["bias"].shape == (3, 4)
    assert torch.equal(exported(ones(2, 4)), model(ones(2, 4)))


def test_another_thread_that_still_waits_is_legal(ddp):
    thread = threading.Thread(target=lambda: dist.recv(ones(4), 1))
    with ddp.comms() as comms:
        if ddp.rank == 0:
            thread.start()
            while not len(comms):
                gc.collect()
    ddp.barrier()
    if ddp.rank == 1:
        dist.send(ones(4), 0)
    else:
        thread.join()
        assert comms.counts() == {"recv": 1}


@pytest.mark.filterwarnings("ignore:.*jit:DeprecationWarning")
def test_scripted_modules_have_no_names(ddp):
    model = torch.jit.script(torch.nn.Linear(4, 4))
    with ddp.comms(model) as comms:
        model(ones(2, 4)).sum().backward()
        dist.all_reduce(ones(1))
    assert only(comms).step == 0


class Refuses(torch.nn.Module):
    def register_forward_hook(self, *args, **kwargs):
        raise TypeError("no hooks")


def test_a_model_that_takes_no_hooks(ddp):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Refuses())
    with pytest.raises(TypeError, match="no hooks"), ddp.comms(model):
        pass
    assert not model[0]._forward_hooks
    with ddp.comms() as comms:
        dist.all_reduce(ones(1))
    assert comms.counts() == {"all_reduce": 1}


def test_groups_made_and_destroyed_in_the_block(ddp):
    with ddp.comms() as comms:
        for _ in range(2):
            group = dist.new_group([0, 1])
            dist.all_reduce(ones(4), group=group)
            dist.destroy_process_group(group)
    assert comms.counts() == {"all_reduce": 2}


@pytest.mark.ddp(world_size=2, init=False)
def test_a_default_group_of_the_block(ddp):
    with ddp.comms() as comms:
        dist.init_process_group("gloo")
        dist.all_reduce(ones(4))
        dist.destroy_process_group()
    assert comms.counts() == {"all_reduce": 1}


def test_a_users_reduction_is_no_bucket(ddp):
    model = torch.nn.Linear(8, 8)
    model.weight.register_post_accumulate_grad_hook(lambda one: dist.all_reduce(one.grad))
    with ddp.comms(model) as comms:
        model(ones(2, 8)).sum().backward()
    record = only(comms)
    assert (record.belongs_to, record.issued_in, record.phase) == (None, "", "backward")
