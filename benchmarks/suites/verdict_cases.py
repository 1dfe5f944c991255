"""Two ranks that can never end together, in the ways that are met in practice."""

import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType
from torch.nn.parallel import DistributedDataParallel
from verdict_clock import moved

TIMEOUT = timedelta(seconds=float(os.environ["BENCHMARK_TIMEOUT"]))


def _new_group():
    # It does not inherit the timeout of the default group.
    return dist.new_group([0, 1], timeout=TIMEOUT)


def all_reduce_against_barrier(rank):
    moved()
    dist.all_reduce(torch.ones(4)) if rank == 0 else dist.barrier()


def unlike_sizes(rank):
    moved()
    dist.all_reduce(torch.ones(4 + rank))


def unlike_dtypes(rank):
    moved()
    dist.all_reduce(torch.ones(4, dtype=torch.int32 if rank else torch.float32))


def one_returns_early(rank):
    moved()
    if rank == 0:
        dist.all_reduce(torch.ones(1))


def one_raises_early(rank):
    moved()
    if rank == 1:
        raise ValueError("on one rank")
    dist.all_reduce(torch.ones(1))


def one_dies_early(rank):
    moved()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))


def three_against_two(rank):
    for _ in range(2):
        dist.all_reduce(torch.ones(1))
    moved()
    if rank == 0:
        dist.all_reduce(torch.ones(1))


def mismatch_in_subgroup(rank):
    pair = _new_group()
    moved()
    dist.all_reduce(torch.ones(2), group=pair) if rank == 0 else dist.barrier(group=pair)


def backward_on_one_rank(rank):
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    moved()
    if rank == 0:
        model(torch.ones(1, 2)).sum().backward()


def state_dict_on_one_rank(rank):
    model = FullyShardedDataParallel(torch.nn.Linear(4, 4), device_id=torch.device("cpu"))
    moved()
    if rank == 0:
        with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            model.state_dict()


def receive_without_send(rank):
    moved()
    if rank == 0:
        dist.recv(torch.ones(1), src=1)


def crossed_subgroups(rank):
    groups = _new_group(), _new_group()
    moved()
    for group in groups if rank == 0 else reversed(groups):
        dist.all_reduce(torch.ones(1), group=group)


CASES = (
    *(all_reduce_against_barrier, unlike_sizes, unlike_dtypes, one_returns_early),
    *(one_raises_early, one_dies_early, three_against_two, mismatch_in_subgroup),
    *(backward_on_one_rank, state_dict_on_one_rank, receive_without_send, crossed_subgroups),
)
