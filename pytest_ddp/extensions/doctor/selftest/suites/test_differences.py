"""What NCCL refuses or does otherwise than gloo: the rows of docs/nccl.md, on NCCL itself."""

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.ddp

EXPECTED = {
    "test_bitwise": ("passed", ""),
    "test_dtype[int16]": ("passed", ""),
    "test_dtype[uint32]": ("passed", ""),
    "test_complex": ("passed", ""),
    "test_contiguous": ("passed", ""),
    "test_channels_last": ("passed", ""),
    "test_dense": ("passed", ""),
    "test_as_it_lies": ("passed", ""),
    "test_sparse": ("passed", ""),
    "test_any_source": ("passed", ""),
    "test_all_gather_coalesced": ("passed", ""),
    "test_monitored_barrier": ("passed", ""),
    "test_tags": ("passed", ""),
    "test_reduce_elsewhere": ("passed", ""),
    "test_uneven_all_gather": ("passed", ""),
    "test_integer_average": ("passed", ""),
    "test_scaled_sum": ("passed", ""),
    "test_transposed_message": ("passed", ""),
    "test_tensor_on_a_cpu": ("passed", ""),
    "test_refused_message": ("passed", ""),
    "test_after_a_refused_message": ("passed", ""),
}


def ones(ddp, *shape, **kinds):
    return torch.ones(*shape, device=ddp.device, **kinds)


def with_gaps(ddp):
    return ones(ddp, 8)[::2]


def test_bitwise(ddp):
    with pytest.raises(ValueError, match=r"Cannot use ReduceOp\.BAND with NCCL"):
        dist.all_reduce(ones(ddp, 4, dtype=torch.int32), dist.ReduceOp.BAND)


@pytest.mark.parametrize("name", ["int16", "uint32"])
def test_dtype(ddp, name):
    zeros = torch.zeros(4, device=ddp.device, dtype=getattr(torch, name))
    for call in (dist.all_reduce, lambda tensor: dist.broadcast(tensor, 0)):
        with pytest.raises(TypeError, match="not supported for NCCL process group"):
            call(zeros)


def test_complex(ddp):
    tensor = ones(ddp, 4, dtype=torch.complex64)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [complex(ddp.world_size)] * 4
    parts = ones(ddp, 2 * ddp.world_size, dtype=torch.complex64)
    with pytest.raises(TypeError, match="not supported for NCCL process group"):
        dist.reduce_scatter_tensor(ones(ddp, 2, dtype=torch.complex64), parts)


def test_contiguous(ddp):
    for call in (
        dist.all_reduce,
        lambda tensor: dist.broadcast(tensor, 0),
        lambda tensor: dist.reduce(tensor, 0),
        lambda tensor: dist.all_gather_into_tensor(ones(ddp, 4 * ddp.world_size), tensor),
    ):
        with pytest.raises(ValueError, match="Tensors must be contiguous"):
            call(with_gaps(ddp))


def test_channels_last(ddp):
    image = ones(ddp, 2, 3, 4, 4).to(memory_format=torch.channels_last)
    dist.all_reduce(image)
    assert (image == ddp.world_size).all()


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_dense(ddp):
    with pytest.raises(ValueError, match="non-overlapping and dense"):
        dist.all_reduce_coalesced([with_gaps(ddp), ones(ddp, 4)])


def test_as_it_lies(ddp):
    rows = torch.arange(4.0 * ddp.world_size, device=ddp.device)
    transposed = rows.reshape(2, 2 * ddp.world_size).t()
    got, right = torch.zeros(2, 2, device=ddp.device), torch.zeros(2, 2, device=ddp.device)
    dist.reduce_scatter_tensor(got, transposed)
    dist.reduce_scatter_tensor(right, transposed.contiguous())
    assert got.tolist() != right.tolist()
    assert got.flatten().tolist() == (ddp.world_size * rows[4 * ddp.rank :][:4]).tolist()


def test_sparse(ddp):
    sparse = torch.eye(2, device=ddp.device).to_sparse()
    with pytest.raises(RuntimeError, match="does not support all_reduce with sparse tensors"):
        dist.all_reduce(sparse)


def test_any_source(ddp):
    with pytest.raises(NotImplementedError, match="recvAnysource"):
        dist.recv(ones(ddp, 4))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_all_gather_coalesced(ddp):
    lists = [[ones(ddp, 4)] for _ in range(ddp.world_size)]
    with pytest.raises(NotImplementedError, match="allgather_coalesced"):
        dist.all_gather_coalesced(lists, [ones(ddp, 4)])


def test_monitored_barrier(ddp):
    with pytest.raises(ValueError, match="only implemented for GLOO"):
        dist.monitored_barrier()


def test_tags(ddp):
    one, two = ones(ddp, 4), 2 * ones(ddp, 4)
    if ddp.rank == 0:
        works = [dist.isend(one, 1, tag=1), dist.isend(two, 1, tag=2)]
    else:
        works = [dist.irecv(two, 0, tag=2), dist.irecv(one, 0, tag=1)]
    for work in works:
        work.wait()
    got = one[0].item(), two[0].item()
    assert got == ((1, 2) if ddp.rank == 0 else (2, 1))


def test_reduce_elsewhere(ddp):
    number = torch.full((2,), ddp.rank + 1.0, device=ddp.device)
    dist.reduce(number, 0)
    total = ddp.world_size * (ddp.world_size + 1) / 2
    assert number.tolist() == [total if ddp.rank == 0 else ddp.rank + 1.0] * 2


def test_uneven_all_gather(ddp):
    found = [torch.zeros(rank + 1, device=ddp.device) for rank in range(ddp.world_size)]
    dist.all_gather(found, torch.full((ddp.rank + 1,), ddp.rank + 1.0, device=ddp.device))
    assert [tensor.tolist() for tensor in found] == [[1.0], [2.0, 2.0]]


def test_integer_average(ddp):
    number = torch.full((2,), ddp.rank + 1, device=ddp.device, dtype=torch.int32)
    dist.all_reduce(number, dist.ReduceOp.AVG)
    assert number.tolist() == [1, 1]


def test_scaled_sum(ddp):
    number = ones(ddp, 2)
    dist.all_reduce(number, dist._make_nccl_premul_sum(3.0))
    assert number.tolist() == [3.0 * ddp.world_size] * 2


def test_transposed_message(ddp):
    numbers = torch.arange(6.0, device=ddp.device).reshape(2, 3).t()
    if ddp.rank == 0:
        dist.send(numbers, 1)
    else:
        got = torch.zeros(2, 3, device=ddp.device).t()
        dist.recv(got, 0)
        assert torch.equal(got, numbers)


def test_tensor_on_a_cpu(ddp):
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.ones(1))


def test_refused_message(ddp):
    # Collectives that these threads issue after it return at once and never run, so that all other
    # tests on these ranks stand before it.
    number = torch.zeros(4, device=ddp.device, dtype=torch.int16)
    with pytest.raises(TypeError, match="not supported for NCCL process group"):
        dist.send(number, 1) if ddp.rank == 0 else dist.recv(number, 0)


def test_after_a_refused_message(ddp):
    total = ones(ddp, 4)
    dist.all_reduce(total)
    assert total.tolist() == [ddp.world_size] * 4
