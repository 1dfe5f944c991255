"""Training programs that are right, and the parts that wrong ones share.

Each is a function without arguments, which begins where torchrun has started the process
and ends where it would look at the exit code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SAMPLES, FEATURES, BATCH, RATE = 14, 4, 4, 0.1


class Points(Dataset[tuple[Tensor, Tensor]]):
    """Points on a plane that is to be found; each a function of its index."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        point = torch.sin(torch.arange(1.0, FEATURES + 1) * (index + 1))
        return point, point.sum(0, keepdim=True)


class Net(nn.Module):
    """Two layers and an activation in place."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(FEATURES, 8)
        self.leave = nn.Linear(8, 1)

    def forward(self, points: Tensor) -> Tensor:
        out: Tensor = self.leave(self.enter(points).relu_())
        return out


def own_rank() -> int:
    """This process's rank, by torchrun's variable."""
    return int(os.environ["RANK"])


def is_last() -> bool:
    """Whether this is the rank that the planted defects choose."""
    return own_rank() == int(os.environ["WORLD_SIZE"]) - 1


def make_loader() -> DataLoader[Any]:
    """This rank's share of the samples; the process group must be there."""
    data = Points()
    return DataLoader(data, BATCH // 2, sampler=DistributedSampler(data, seed=7))


def fit(model: Any, optimizer: Optimizer, loader: Iterable[Any]) -> None:
    """One epoch."""
    for points, targets in loader:
        fit_batch(model, optimizer, points, targets)


def fit_batch(model: Any, optimizer: Optimizer, points: Tensor, targets: Tensor) -> None:
    """One step."""
    optimizer.zero_grad()
    loss: Any = nn.functional.mse_loss(model(points), targets)
    loss.backward()
    optimizer.step()


def train_with(wrap: Callable[[nn.Module], Any], net: type[nn.Module] = Net) -> Any:
    """Everything from the process group to the last step; what was trained."""
    dist.init_process_group("gloo")
    loader = make_loader()
    torch.manual_seed(0)
    model = wrap(net())
    fit(model, SGD(model.parameters(), RATE), loader)
    return model


# ------------------------------------------------------------------ right ones


def train_plainly() -> None:
    """No barrier anywhere, an optimizer from before the DDP wrap, a warm-up from rate 0."""
    dist.init_process_group("gloo")
    loader = make_loader()
    model = Net()
    optimizer = SGD(model.parameters(), RATE)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 2))
    wrapped = DistributedDataParallel(model)
    for points, targets in loader:
        fit_batch(wrapped, optimizer, points, targets)
        warm_up.step()
    if own_rank() == 0:
        torch.save(model.state_dict(), "model.pt")
    dist.destroy_process_group()


def train_compiled() -> None:
    """Compiles after the wrap, saves the bare module, and lets all ranks choose the backend."""
    dist.init_process_group(common_backend())
    loader = make_loader()
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    compiled: Any = torch.compile(model, backend="eager")
    fit(compiled, SGD(model.parameters(), RATE), loader)
    if own_rank() == 0:
        torch.save({"epoch": 1, "model": model.module.state_dict()}, "model.pt")
    dist.barrier()
    dist.destroy_process_group()


def train_in_shards() -> None:
    """One row of weights, sharded: the last rank has an empty part, whose steps change nothing."""
    dist.init_process_group("gloo")
    loader = make_loader()
    model = nn.Linear(FEATURES, 1)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    fit(model, SGD(model.parameters(), RATE), loader)
    dist.destroy_process_group()


def common_backend() -> str:
    """NCCL if every rank has a GPU, by the votes of all of them."""
    size = int(os.environ["WORLD_SIZE"])
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    store.set(f"vote/{own_rank()}", str(torch.cuda.is_available()))
    votes = [store.get(f"vote/{rank}").decode() for rank in range(size)]
    return "nccl" if all(vote == "True" for vote in votes) else "gloo"
