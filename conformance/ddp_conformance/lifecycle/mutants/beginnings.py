"""Programs that go wrong on the way to the first step: LIF-01 to LIF-04."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler, Sampler

from ddp_conformance.lifecycle.mutants.programs import (
    BATCH,
    RATE,
    SAMPLES,
    Net,
    Points,
    fit,
    is_last,
    make_loader,
    own_rank,
    train_with,
)

# ------------------------------------------------------------------ LIF-01


class RaisesOnLastRank(Net):
    """Finds a file missing that only one machine lacks."""

    def __init__(self) -> None:
        super().__init__()
        if is_last():
            raise FileNotFoundError("/data/weights.pt")


class CrashesInConstruction(Net):
    """A native library fails in the constructor."""

    def __init__(self) -> None:
        super().__init__()
        crash_on_last_rank()


class CrashesInWrap(Net):
    """DDP reads the module's parameters, which crashes in native code."""

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        """Crashes on the last rank; DDP is the first to call it."""
        crash_on_last_rank()
        return super().named_parameters(*args, **kwargs)


class CrashesInForward(Net):
    """A native operator fails in the first forward pass."""

    def forward(self, points: Tensor) -> Tensor:
        crash_on_last_rank()
        return super().forward(points)


def crash_on_last_rank() -> None:
    """Read address 0."""
    if is_last():
        ctypes.string_at(0)


def crashing_backend(graph: Any, inputs: Any) -> Any:
    """A compiler that crashes."""
    crash_on_last_rank()
    return graph


def raise_on_last_rank() -> None:
    """One rank cannot make its model."""
    train_with(DistributedDataParallel, RaisesOnLastRank)


def crash_in_construction() -> None:
    """SIGSEGV in model construction."""
    train_with(DistributedDataParallel, CrashesInConstruction)


def crash_in_wrap() -> None:
    """SIGSEGV in the DDP constructor."""
    train_with(DistributedDataParallel, CrashesInWrap)


def crash_in_compilation() -> None:
    """SIGSEGV in a compiler backend."""
    train_with(lambda net: torch.compile(DistributedDataParallel(net), backend=crashing_backend))


def crash_in_forward() -> None:
    """SIGSEGV in the first forward pass."""
    train_with(DistributedDataParallel, CrashesInForward)


# ------------------------------------------------------------------ LIF-02


def load_before_init() -> None:
    """The loader reads the number of ranks before there is a process group."""
    data = Points()
    sampler: Any = DistributedSampler(data) if dist.is_initialized() else None
    loader = DataLoader(data, BATCH, sampler=sampler, shuffle=sampler is None)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Net())
    fit(model, SGD(model.parameters(), RATE), loader)
    dist.destroy_process_group()


def shard_before_init() -> None:
    """The sampler is made for rank 0 of 1 on every rank."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    size = dist.get_world_size() if dist.is_initialized() else 1
    data = Points()
    loader = DataLoader(data, BATCH, sampler=DistributedSampler(data, size, rank))
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Net())
    fit(model, SGD(model.parameters(), RATE), loader)
    dist.destroy_process_group()


def draw_before_init() -> None:
    """A weighted sampler is made for rank 0 of 1 on every rank: all make the same draw."""
    train_on_draws(0, 1)


def train_on_draws(rank: int | None = None, size: int | None = None) -> None:
    """A draw with replacement that the ranks share; those of the process group by default."""
    dist.init_process_group("gloo")
    rank = dist.get_rank() if rank is None else rank
    size = dist.get_world_size() if size is None else size
    generator = torch.Generator().manual_seed(0)
    draws = torch.randint(SAMPLES, (4 * SAMPLES,), generator=generator)[rank::size]
    model = DistributedDataParallel(Net())
    fit(model, SGD(model.parameters(), RATE), DataLoader(Points(), BATCH, sampler=draws.tolist()))
    dist.destroy_process_group()


def draw_in_shares() -> None:
    """Correct: each rank draws its share."""
    train_on_draws()


def train_endlessly(rank: int | None = None, size: int | None = None) -> None:
    """Steps over a stream of permutations that the ranks share; those of the group by default."""
    dist.init_process_group("gloo")
    rank = dist.get_rank() if rank is None else rank
    size = dist.get_world_size() if size is None else size
    stream = itertools.islice(permutations(), rank, None, size)
    model = DistributedDataParallel(Net())
    batches = DataLoader(Points(), 2, sampler=EndlessStart(stream))
    fit(model, SGD(model.parameters(), RATE), itertools.islice(batches, SAMPLES))
    dist.destroy_process_group()


def pass_before_init() -> None:
    """Every rank goes through the whole stream."""
    train_endlessly(0, 1)


def pass_in_shares() -> None:
    """Correct: each rank goes through its share of the stream."""
    train_endlessly()


class EndlessStart(Sampler[int]):
    """What a stream has."""

    def __init__(self, stream: Iterator[int]) -> None:
        self.stream = stream

    def __iter__(self) -> Iterator[int]:
        return self.stream


def permutations() -> Iterator[int]:
    """Yield permutations without end."""
    generator = torch.Generator().manual_seed(0)
    while True:
        yield from torch.randperm(SAMPLES, generator=generator).tolist()


def shard_a_set() -> None:
    """Each rank takes its share of names in the order of a set, which differs between processes."""
    dist.init_process_group("gloo")
    names = list({f"sample-{index}" for index in range(SAMPLES)})
    train_on([int(name.removeprefix("sample-")) for name in names])


def shard_a_sorted_set() -> None:
    """The same names, in an order that all ranks share."""
    dist.init_process_group("gloo")
    names = sorted({f"sample-{index:02}" for index in range(SAMPLES)})
    train_on([int(name.removeprefix("sample-")) for name in names])


def train_on(indices: list[int]) -> None:
    """This rank's share of them."""
    loader = DataLoader(Points(), BATCH, sampler=indices[dist.get_rank() :: dist.get_world_size()])
    model = DistributedDataParallel(Net())
    fit(model, SGD(model.parameters(), RATE), loader)
    dist.destroy_process_group()


# ------------------------------------------------------------------ LIF-03


def read_before_written() -> None:
    """Rank 0 writes the initial weights; the others take them if they are there."""
    dist.init_process_group("gloo")
    loader = make_loader()
    torch.manual_seed(own_rank())
    model = Net()
    path = Path("initial.pt")
    if own_rank() == 0:
        save_whole(model, path)
    elif path.exists():
        model.load_state_dict(torch.load(path))
    wrapped = DistributedDataParallel(model, init_sync=False)
    fit(wrapped, SGD(model.parameters(), RATE), loader)
    dist.destroy_process_group()


def save_whole(model: nn.Module, path: Path) -> None:
    """Complete before it is visible."""
    part = path.with_suffix(".part")
    torch.save(model.state_dict(), part)
    part.rename(path)


# ------------------------------------------------------------------ LIF-04


def optimize_before_fsdp1() -> None:
    """The optimizer keeps the parameters that FSDP1 has replaced by one flat parameter."""
    dist.init_process_group("gloo")
    loader = make_loader()
    model = Net()
    optimizer = SGD(model.parameters(), RATE)
    wrapped = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=False)
    fit(wrapped, optimizer, loader)
    dist.destroy_process_group()


def optimize_before_fsdp2() -> None:
    """The optimizer keeps the parameters that fully_shard has replaced by sharded ones."""
    dist.init_process_group("gloo")
    loader = make_loader()
    model = Net()
    optimizer = SGD(model.parameters(), RATE)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    fit(model, optimizer, loader)
    dist.destroy_process_group()


def optimize_one_layer() -> None:
    """The head was replaced after the optimizer was made."""
    dist.init_process_group("gloo")
    loader = make_loader()
    model = Net()
    optimizer = SGD(model.parameters(), RATE)
    model.leave = nn.Linear(8, 1)
    fit(DistributedDataParallel(model), optimizer, loader)
    dist.destroy_process_group()
