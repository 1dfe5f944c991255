"""An inner suite: buffers, calls and messages that are right on NCCL.

``mutants.py`` makes wrong programs of them.
"""

import threading

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_functional
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.ddp(world_size=2, portable="nccl")
three = pytest.mark.ddp(world_size=3)
ones, zeros = torch.ones, torch.zeros


@pytest.fixture
def other(ddp):
    """A second group of both ranks."""
    group = dist.new_group([0, 1])
    yield group
    dist.destroy_process_group(group)


# ------------------------------------------------------------------ buffers


def test_write_after_wait(ddp):
    x = ones(4)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    x.mul_(2)


def test_read_after_wait(ddp):
    x = ones(4)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    total = x.sum()
    assert total <= 8


def test_read_an_input(ddp):
    x, out = ones(4), zeros(8)
    work = dist.all_gather_into_tensor(out, x, async_op=True)
    total = x.sum()
    work.wait()
    x.zero_()
    assert total == 4


def test_read_what_is_sent(ddp):
    x, y = ones(4), zeros(4)
    if ddp.rank == 0:
        work = dist.isend(x, 1)
        total = x.sum()
        work.wait()
        x.fill_(float(total))
    else:
        dist.recv(y, 0)


def test_write_by_numpy_after_wait(ddp):
    x, out = ones(4), zeros(8)
    memory = x.numpy()
    work = dist.all_gather_into_tensor(out, x, async_op=True)
    work.wait()
    memory[0] = 5


def test_write_through_data_after_wait(ddp):
    x, shard = ones(8), zeros(4)
    work = dist.reduce_scatter_tensor(shard, x, async_op=True)
    work.wait()
    x.data[3] = 5


def test_flat_gradients(ddp):
    flat = zeros(12)
    parts, works = flat.split(4), []
    parts[0].fill_(1)
    works.append(dist.all_reduce(parts[0], async_op=True))
    parts[1].fill_(2)
    works.append(dist.all_reduce(parts[1], async_op=True))
    parts[2].fill_(3)
    works.append(dist.all_reduce(parts[2], async_op=True))
    for work in works:
        work.wait()
    assert flat.min() >= 0


def test_flat_gradients_in_hooks(ddp):
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
    parameters = list(model.parameters())
    flat = zeros(sum(one.numel() for one in parameters))
    works, start = [], 0
    for one in parameters:
        one.grad = flat[start : start + one.numel()].view_as(one)
        start += one.numel()
        one.register_post_accumulate_grad_hook(
            lambda one: works.append(dist.all_reduce(one.grad, async_op=True))
        )
    model(ones(2, 4)).sum().backward()
    for work in works:
        work.wait()
    flat.div_(2)
    torch.optim.SGD(parameters, 0.1).step()


def test_halves(ddp):
    x = ones(8)
    work = dist.all_reduce(x[:4], async_op=True)
    x[4:].mul_(2)
    work.wait()


def test_columns(ddp):
    table = zeros(4, 4)
    work = dist.all_gather([table[:, :1], table[:, 1:2]], ones(4, 1), async_op=True)
    table[:, 2:].fill_(7)
    work.wait()
    assert table[:, 2:].sum() == 56


def test_nothing_is_written(ddp):
    x = ones(4)
    work = dist.all_reduce(x, async_op=True)
    x[4:].zero_()
    work.wait()


def test_shapes_and_views(ddp):
    x = ones(4)
    work = dist.all_reduce(x, async_op=True)
    like = torch.zeros_like(x), torch.empty_like(x), x.new_zeros(2), x.detach(), x.view(2, 2)
    assert x.shape == like[0].shape
    work.wait()


def test_wait_for_the_last(ddp):
    x, y = ones(4), ones(4)
    first = dist.all_reduce(x, async_op=True)
    second = dist.all_reduce(y, async_op=True)
    second.wait()
    x.mul_(2)
    first.wait()


def test_reduce_twice(ddp):
    x = ones(4)
    works = [dist.all_reduce(x, async_op=True)]
    works[0].wait()
    works.append(dist.all_reduce(x, async_op=True))
    works[1].wait()


def test_polling(ddp):
    x = ones(4)
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        pass
    x.mul_(2)


def test_a_future(ddp):
    x = ones(4)
    future = dist.all_reduce(x, async_op=True).get_future()
    halved = future.then(lambda future: future.value()[0].div_(2))
    assert halved.wait().tolist() == [1] * 4
    x.mul_(2)


def test_broadcast_reads_its_source(ddp):
    x = ones(4) * (ddp.rank + 1)
    work = dist.broadcast(x, 0, async_op=True)
    if ddp.rank == 0:
        assert x.sum() == 4
    work.wait()
    x.mul_(2)


def test_reduce_to_one(ddp):
    x = ones(4)
    work = dist.reduce(x, 0, async_op=True)
    work.wait()
    x.mul_(2)


def test_two_groups(ddp, other):
    x, y = ones(4), ones(4)
    first = dist.all_reduce(x, async_op=True)
    second = dist.all_reduce(y, group=other, async_op=True)
    first.wait()
    second.wait()
    (x + y).sum()


def test_one_group_after_the_other(ddp, other):
    x = ones(4)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    dist.all_reduce(x, group=other)


def test_both_groups_read(ddp, other):
    x, one, two = ones(4), zeros(8), zeros(8)
    first = dist.all_gather_into_tensor(one, x, async_op=True)
    second = dist.all_gather_into_tensor(two, x, group=other, async_op=True)
    first.wait()
    second.wait()


def test_sharded_optimizer(ddp):
    flat, gradient = ones(8), ones(8)
    shard, mine = zeros(4), flat[4 * ddp.rank : 4 * ddp.rank + 4]
    work = dist.reduce_scatter_tensor(shard, gradient, async_op=True)
    work.wait()
    mine.sub_(shard, alpha=0.1)
    work = dist.all_gather_into_tensor(flat, mine, async_op=True)
    work.wait()
    gradient.zero_()
    torch.testing.assert_close(flat, torch.full((8,), 0.8))


def test_new_memory_each_time(ddp):
    works = []
    for n in range(8):
        x = torch.full((1024,), float(n))
        works.append(dist.all_reduce(x, async_op=True))
        del x
        torch.full((1024,), 7.0).mul_(2)
    for work in works:
        work.wait()


def test_each_operation(ddp):
    one, two = ones(4), zeros(4)
    pair, out = [ones(4), ones(4)], [zeros(4), zeros(4)]
    root = ddp.rank == 0
    for work in (
        dist.all_to_all_single(two, one, async_op=True),
        dist.all_to_all(out, pair, async_op=True),
        dist.reduce_scatter(two, pair, async_op=True),
        dist.gather(one, out if root else None, 0, async_op=True),
        dist.scatter(two, pair if root else None, 0, async_op=True),
        dist.all_gather(out, one, async_op=True),
        dist.all_reduce(two, op=dist.ReduceOp.AVG, async_op=True),
        dist.reduce(ones(4), 1, async_op=True),
        dist.all_reduce_coalesced([one, two], async_op=True),
        dist.barrier(async_op=True),
    ):
        work.wait()
    with dist._coalescing_manager(async_ops=True) as coalesced:
        dist.all_reduce(one)
        dist.all_reduce(two)
    coalesced.wait()
    one.mul_(2), two.mul_(2), pair[0].zero_(), out[0].zero_()


def test_inference(ddp):
    with torch.inference_mode():
        x = ones(4)
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        x.mul_(2)


def test_another_thread(ddp):
    x = ones(4)

    def communicate():
        work = dist.all_reduce(x, async_op=True)
        work.wait()

    thread = threading.Thread(target=communicate)
    thread.start()
    thread.join()
    x.mul_(2)


def test_a_mode_of_the_program(ddp):
    from torch.utils.flop_counter import FlopCounterMode

    x = ones(4, 4)
    with FlopCounterMode(display=False) as counter:
        work = dist.all_reduce(x, async_op=True)
        ones(4, 4) @ ones(4, 4)
    with FlopCounterMode(display=False) as inner:
        ones(4, 4) @ ones(4, 4)
        work.wait()
    assert counter.get_total_flops() == inner.get_total_flops() == 128
    assert torch._C._len_torch_dispatch_stack() == 0


def test_compiled_meanwhile(ddp):
    @torch.compile(fullgraph=True, backend="aot_eager")
    def twice(x):
        return x * 2

    x = ones(4)
    work = dist.all_reduce(x, async_op=True)
    assert twice(ones(3)).sum() == 6
    work.wait()


# ------------------------------------------------------------------ what NCCL has


def test_channels_last(ddp):
    dist.all_reduce(ones(2, 3, 4, 4).to(memory_format=torch.channels_last))


def test_a_contiguous_copy(ddp):
    dist.all_reduce(ones(8)[::2].contiguous())


def test_a_scattered_copy(ddp):
    dist.reduce_scatter_tensor(zeros(4), ones(16)[::2].contiguous())


def test_a_list_of_columns(ddp):
    table = zeros(4, 2)
    dist.all_gather([table[:, :1], table[:, 1:]], ones(4, 1))
    assert table.sum() == 8


def test_bool_and_complex(ddp):
    dist.all_reduce(ones(4, dtype=torch.bool))
    dist.all_reduce(ones(4, dtype=torch.complex64))
    dist.broadcast(ones(4, dtype=torch.complex64), 0)


def test_minimum_of_flags(ddp):
    dist.all_reduce(ones(4, dtype=torch.int32), op=dist.ReduceOp.MIN)


def test_a_group_that_stays_gloo(ddp):
    group = dist.new_group(backend="gloo")
    dist.all_reduce(ones(4, dtype=torch.int32), op=dist.ReduceOp.BAND, group=group)
    dist.monitored_barrier(group)
    dist.destroy_process_group(group)


def test_integers_as_bytes(ddp):
    x = ones(4, dtype=torch.int16).view(torch.uint8)
    dist.send(x, 1) if ddp.rank == 0 else dist.recv(x, 0)


def test_a_named_source(ddp):
    x = ones(4)
    dist.send(x, 1) if ddp.rank == 0 else dist.recv(x, 0)


def test_dense_embedding(ddp):
    model = DistributedDataParallel(torch.nn.Embedding(8, 4, sparse=False))
    model(torch.tensor([1, 2])).sum().backward()


# ------------------------------------------------------------------ reduce


def test_loss_of_the_destination(ddp):
    loss = torch.tensor([1.0 + ddp.rank])
    dist.reduce(loss, 0)
    loss /= ddp.world_size
    if ddp.rank == 0:
        assert loss.item() == 1.5


def test_a_buffer_that_is_filled_again(ddp):
    total = zeros(4)
    for _ in range(2):
        total.copy_(ones(4))
        dist.reduce(total, 1)
        if ddp.rank == 1:
            assert total.sum() >= 8


def test_reduce_with_a_handle(ddp):
    total = ones(4)
    work = dist.reduce(total, 0, async_op=True)
    work.wait()
    result = total.clone() if ddp.rank == 0 else zeros(4)
    dist.all_reduce(result)
    assert result.sum() >= 8


def test_gradients_of_each_owner(ddp):
    weights = zeros(4, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad(set_to_none=False)
        (weights * (1.0 + ddp.rank)).sum().backward()
        parts = weights.grad.chunk(2)
        for owner, part in enumerate(parts):
            dist.reduce(part, owner)
        norm = parts[ddp.rank].norm()
        dist.all_reduce(norm)
        assert norm.item() > 0
        optimizer.step()
        for owner, part in enumerate(weights.detach().chunk(2)):
            dist.broadcast(part, owner)
    assert torch.allclose(weights, torch.full((4,), -0.6))


def test_derivative_of_reduce(ddp):
    x = ones(4, requires_grad=True)
    dist_functional.reduce(x * 2, 0).sum().backward()
    assert x.grad.tolist() == [2.0] * 4


@three
def test_reduce_in_a_subgroup(ddp):
    group = dist.new_group([1, 2])
    total = ones(2)
    if ddp.rank:
        dist.reduce(total, 2, group=group)
    if ddp.rank != 1:
        assert total.sum() == (4 if ddp.rank else 2)


# ------------------------------------------------------------------ messages


def test_exchange_in_a_batch(ddp):
    x, y, peer = ones(4), zeros(4), 1 - ddp.rank
    messages = [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, y, peer)]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    (x + y).sum()


def test_exchange_by_turns(ddp):
    x, y, peer = ones(4), zeros(4), 1 - ddp.rank
    if ddp.rank == 0:
        work = dist.isend(x, peer)
        dist.recv(y, peer)
    else:
        dist.recv(y, peer)
        work = dist.isend(x, peer)
    work.wait()


def test_tags_in_order(ddp):
    x, y = ones(4), zeros(4)
    if ddp.rank == 0:
        works = [dist.isend(x, 1, tag=1), dist.isend(x, 1, tag=2)]
    else:
        works = [dist.irecv(y, 0, tag=1), dist.irecv(x, 0, tag=2)]
    for work in works:
        work.wait()


def test_double_buffering(ddp):
    if ddp.rank == 0:
        buffers, works = [zeros(4), zeros(4)], [None, None]
        for n in range(6):
            if works[n % 2] is not None:
                works[n % 2].wait()
            buffers[n % 2].fill_(n)
            works[n % 2] = dist.isend(buffers[n % 2], 1)
        works[0].wait()
        works[1].wait()
    else:
        for n in range(6):
            x = zeros(4)
            dist.recv(x, 0)
            assert x.sum() == 4 * n


@three
def test_ring_in_batches(ddp):
    x, y = ones(4), zeros(4)
    messages = [
        dist.P2POp(dist.isend, x, (ddp.rank + 1) % 3),
        dist.P2POp(dist.irecv, y, (ddp.rank - 1) % 3),
    ]
    for work in dist.batch_isend_irecv(messages):
        work.wait()


def both_ways(peer, group=None):
    ends = [(dist.isend, ones(2)), (dist.irecv, zeros(2))]
    return [dist.P2POp(end, x, peer, group) for end, x in ends]


@three
def test_batch_of_some_after_a_collective_of_all(ddp):
    group = dist.new_group()
    dist.all_reduce(ones(1), group=group)
    if ddp.rank < 2:
        for work in dist.batch_isend_irecv(both_ways(1 - ddp.rank, group)):
            work.wait()
    dist.destroy_process_group(group)


@three
def test_batch_of_a_group_of_two(ddp):
    group = dist.new_group([0, 2])
    if ddp.rank != 1:
        for work in dist.batch_isend_irecv(both_ways(2 - ddp.rank, group)):
            work.wait()


@three
def test_first_batch_of_all(ddp):
    ends = [(dist.isend, ones(2), 1), (dist.irecv, zeros(2), 2)]
    messages = [dist.P2POp(end, x, (ddp.rank + step) % 3) for end, x, step in ends]
    for work in dist.batch_isend_irecv(messages):
        work.wait()


@three
def test_messages_of_some_without_a_batch(ddp):
    group = dist.new_group()
    if ddp.rank < 2:
        dist.send(ones(2), 1, group) if ddp.rank == 0 else dist.recv(zeros(2), 0, group)
    dist.barrier(group)


@three
def test_batch_of_some_on_gloo(ddp):
    group = dist.new_group(backend="gloo")
    if ddp.rank < 2:
        for work in dist.batch_isend_irecv(both_ways(1 - ddp.rank, group)):
            work.wait()


@pytest.fixture(scope="module")
def checked():
    dist.barrier()


@three
@pytest.mark.parametrize("time", [1, 2])
def test_batch_of_some_after_a_collective_of_a_fixture(ddp, checked, time):
    # The second one finds the fixture set up.
    if ddp.rank < 2:
        for work in dist.batch_isend_irecv(both_ways(1 - ddp.rank)):
            work.wait()


def test_room_for_the_size_that_was_sent(ddp):
    size, room = torch.tensor([3]), zeros(8)
    if ddp.rank == 0:
        dist.send(size, 1)
        dist.send(ones(3), 1)
    else:
        dist.recv(size, 0)
        dist.recv(room[: size.item()], 0)
        assert room.tolist() == [1] * 3 + [0] * 5


def test_room_in_another_shape(ddp):
    dist.send(ones(2, 3), 1) if ddp.rank == 0 else dist.recv(zeros(6), 0)


@three
def test_ring_with_a_first(ddp):
    x, y = ones(4), zeros(4)
    if ddp.rank == 0:
        dist.send(x, 1)
        dist.recv(y, 2)
    else:
        dist.recv(y, ddp.rank - 1)
        dist.send(x, (ddp.rank + 1) % 3)
