"""Training programs as people write them, each a function without arguments.

They begin where torchrun has started the process, and end where it would look at the exit
code. Those that are wrong say in their first line what is wrong.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SAMPLES, FEATURES, BATCH, RATE = 14, 4, 4, 0.1

STATUS_PAGES: list[socket.socket] = []


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
    """As torchrun says."""
    return int(os.environ["RANK"])


def is_last() -> bool:
    """Whether this is the rank that the planted defects choose."""
    return own_rank() == int(os.environ["WORLD_SIZE"]) - 1


def make_loader() -> DataLoader[Any]:
    """This rank's share of the samples; the process group must be there."""
    data = Points()
    return DataLoader(data, BATCH // 2, sampler=DistributedSampler(data, seed=7))


def fit(model: Any, optimizer: Optimizer, loader: DataLoader[Any]) -> None:
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
    compiled: Any = torch.compile(model, backend="aot_eager")
    fit(compiled, SGD(model.parameters(), RATE), loader)
    if own_rank() == 0:
        torch.save({"epoch": 1, "model": model.module.state_dict()}, "model.pt")
    dist.barrier()
    dist.destroy_process_group()


def common_backend() -> str:
    """NCCL if every rank has a GPU, by the votes of all of them."""
    size = int(os.environ["WORLD_SIZE"])
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    store.set(f"vote/{own_rank()}", str(torch.cuda.is_available()))
    votes = [store.get(f"vote/{rank}").decode() for rank in range(size)]
    return "nccl" if all(vote == "True" for vote in votes) else "gloo"


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
    """DDP asks the module for its parameters, and that fails natively."""

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        """Crashes where a process group is asked for by then."""
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
    """The loader asks whether there is a process group, before there is one."""
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


# ------------------------------------------------------------------ LIF-05


def save_compiled() -> None:
    """The checkpoint has the names of the wrapper and of the compiler."""
    dist.init_process_group("gloo")
    loader = make_loader()
    model: Any = torch.compile(DistributedDataParallel(Net()), backend="aot_eager")
    fit(model, SGD(model.parameters(), RATE), loader)
    if own_rank() == 0:
        torch.save(model.state_dict(), "model.pt")
    dist.destroy_process_group()


class OtherWhenCompiled(Net):
    """A branch that the compiler takes, and eager code does not."""

    def forward(self, points: Tensor) -> Tensor:
        scale = 0.5 if torch.compiler.is_compiling() else 1.0
        return super().forward(points) * scale


def train_other_when_compiled() -> None:
    """Compiled code computes something else."""
    train_with(
        lambda net: DistributedDataParallel(torch.compile(net, backend="aot_eager")),
        OtherWhenCompiled,
    )
    dist.destroy_process_group()


# ------------------------------------------------------------------ LIF-06


def keep_group() -> None:
    """Nobody destroys the process group."""
    train_with(DistributedDataParallel)


def keep_child() -> None:
    """A monitor that is started and never ended."""
    train_with(DistributedDataParallel)
    subprocess.Popen(["sleep", "60"])
    dist.destroy_process_group()


def keep_thread() -> None:
    """A logging thread that waits for a word that nobody says."""
    train_with(DistributedDataParallel)
    threading.Thread(target=threading.Event().wait, name="logging", daemon=True).start()
    dist.destroy_process_group()


def keep_port() -> None:
    """A status page that goes on being served."""
    train_with(DistributedDataParallel)
    STATUS_PAGES.append(socket.create_server(("127.0.0.1", 0)))
    dist.destroy_process_group()


def keep_segment() -> None:
    """Shared memory that is closed and never unlinked."""
    train_with(DistributedDataParallel)
    SharedMemory(create=True, size=64).close()
    dist.destroy_process_group()


# ------------------------------------------------------------------ LIF-07


def exit_in_finally() -> None:
    """Leaves with 0, whatever has happened."""
    try:
        train_with(DistributedDataParallel)
        dist.destroy_process_group()
    finally:
        os._exit(0)


def swallow_errors() -> None:
    """An error in training is printed and forgotten."""
    try:
        train_with(DistributedDataParallel)
    except Exception as error:
        print("training failed:", error)
    dist.destroy_process_group()


# ------------------------------------------------------------------ LIF-08


def wait_for_ever() -> None:
    """The last rank waits for something that never comes, the others for it."""
    model = train_with(DistributedDataParallel)
    if is_last():
        threading.Event().wait()
    fit(model, SGD(model.parameters(), RATE), make_loader())
    dist.destroy_process_group()


def receive_first() -> None:
    """Every rank waits for its neighbour's message before it sends its own."""
    train_with(DistributedDataParallel)
    size = dist.get_world_size()
    dist.recv(torch.zeros(1), src=(own_rank() - 1) % size)
    dist.send(torch.zeros(1), dst=(own_rank() + 1) % size)
    dist.destroy_process_group()


def retry_for_ever() -> None:
    """A step that fails is made again, also when the peer is gone for good."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Net())
    optimizer = SGD(model.parameters(), RATE)
    for points, targets in make_loader():
        while True:
            try:
                fit_batch(model, optimizer, points, targets)
                break
            except RuntimeError:
                continue
    dist.destroy_process_group()


# ------------------------------------------------------------------ LIF-09


def fall_back_alone() -> None:
    """Each rank takes gloo if NCCL does not start on it."""
    try:
        dist.init_process_group("nccl")
    except Exception:
        dist.init_process_group("gloo")
    model = DistributedDataParallel(Net())
    fit(model, SGD(model.parameters(), RATE), make_loader())
    dist.destroy_process_group()
