"""An inner suite: each row of the table of differences that gloo can show."""

import pytest
import torch
import torch.distributed as dist

from pytest_ddp.extensions.portable.differences import DIFFERENCES

pytestmark = pytest.mark.ddp(world_size=2, portable="nccl")
ones, zeros, Op = torch.ones, torch.zeros, dist.ReduceOp


def _message(ddp, x):
    dist.send(x, 1) if ddp.rank == 0 else dist.recv(x, 0)


def _any_source(ddp):
    dist.send(ones(4), 1) if ddp.rank == 0 else dist.recv(ones(4))


def _tags(ddp):
    begin = [dist.isend, dist.irecv][ddp.rank]
    order = [1, 2] if ddp.rank == 0 else [2, 1]
    for work in [begin(ones(4), 1 - ddp.rank, tag=tag) for tag in order]:
        work.wait()


def _head_to_head(ddp):
    peer = 1 - ddp.rank
    for work in [dist.irecv(zeros(4), peer), dist.isend(ones(4), peer)]:
        work.wait()


def _room(ddp):
    dist.send(ones(4), 1) if ddp.rank == 0 else dist.recv(zeros(6), 0)


def _first_batch(ddp):
    if ddp.rank < 2:
        ends = [(dist.isend, ones(2)), (dist.irecv, zeros(2))]
        for work in dist.batch_isend_irecv([dist.P2POp(end, x, 1 - ddp.rank) for end, x in ends]):
            work.wait()


def _reduce_elsewhere(ddp):
    loss = ones(1)
    dist.reduce(loss, 0)
    loss /= 2
    float(loss)


def _complex(ddp):
    numbers = torch.ones(4, dtype=torch.complex64)
    dist.reduce_scatter_tensor(numbers[:2].clone(), numbers)


FOUND = {
    "bitwise": lambda ddp: dist.all_reduce(ones(4, dtype=torch.uint8), op=Op.BOR),
    "dtype": lambda ddp: _message(ddp, ones(4, dtype=torch.int16)),
    "complex": _complex,
    "contiguous": lambda ddp: dist.broadcast(ones(4, 2).t(), 0),
    "dense": lambda ddp: dist.all_reduce_coalesced([ones(8)[::2]]),
    "as it lies": lambda ddp: dist.reduce_scatter_tensor(zeros(2, 4), ones(4, 4).t()),
    "sparse": lambda ddp: dist.all_reduce(torch.eye(4).to_sparse()),
    "any source": _any_source,
    "all_gather_coalesced": lambda ddp: dist.all_gather_coalesced(
        [[zeros(2)], [zeros(2)]], [ones(2)]
    ),
    "monitored_barrier": lambda ddp: dist.monitored_barrier(),
    "tags": _tags,
    "head to head": _head_to_head,
    "room": _room,
    "first batch": _first_batch,
    "reduce elsewhere": _reduce_elsewhere,
}
REFUSED = {
    "uneven all_gather": (
        lambda ddp: dist.all_gather([zeros(2), zeros(4)], ones(2 + 2 * ddp.rank)),
        "invalid tensor size",
    ),
    "integer average": (
        lambda ddp: dist.all_reduce(ones(4, dtype=torch.int64), op=Op.AVG),
        "result type Float can't be cast",
    ),
    "scaled sum": (
        lambda ddp: dist.all_reduce(ones(4), op=dist._make_nccl_premul_sum(2.0)),
        "Cannot use ReduceOp.PREMUL_SUM with Gloo",
    ),
    "float8": (
        lambda ddp: dist.broadcast(ones(4).to(torch.float8_e4m3fn), 0),
        "Invalid scalar type",
    ),
    "transposed message": (
        lambda ddp: _message(ddp, ones(4, 2).t()),
        "tensor has to be contiguous",
    ),
}


THREE = {"first batch"}
"""Rows that take a third rank."""


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=pytest.mark.ddp(world_size=3) if row in THREE else ())
        for row in FOUND
    ],
)
def test_found(ddp, row):
    FOUND[row](ddp)


@pytest.mark.parametrize("row", REFUSED)
def test_refused_by_gloo(ddp, row):
    call, words = REFUSED[row]
    with pytest.raises(RuntimeError, match=words):
        call(ddp)


def test_all_rows_are_here():
    shown = {*FOUND, *REFUSED, "ring", "CPU tensor", "one device"}
    assert shown == {row.name for row in DIFFERENCES}
