"""Programs that go wrong from compilation on, or in how they end: LIF-05 to LIF-09."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import threading
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from ddp_conformance.lifecycle.mutants.programs import (
    RATE,
    Net,
    fit,
    fit_batch,
    is_last,
    make_loader,
    own_rank,
    train_with,
)

STATUS_PAGES: list[socket.socket] = []

# ------------------------------------------------------------------ LIF-05


def save_compiled() -> None:
    """The checkpoint has the names of the wrapper and of the compiler."""
    dist.init_process_group("gloo")
    loader = make_loader()
    model: Any = torch.compile(DistributedDataParallel(Net()), backend="eager")
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
        lambda net: DistributedDataParallel(torch.compile(net, backend="eager")),
        OtherWhenCompiled,
    )
    dist.destroy_process_group()


# ------------------------------------------------------------------ LIF-06


def keep_group() -> None:
    """The process group is never destroyed."""
    train_with(DistributedDataParallel)


def keep_child() -> None:
    """A monitor that is started and never ended."""
    train_with(DistributedDataParallel)
    subprocess.Popen(["sleep", "60"])
    dist.destroy_process_group()


def keep_thread() -> None:
    """A logging thread that waits for an event that is never set."""
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
    """Exits with code 0 after any error."""
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


def end_in_hook() -> None:
    """The hook for exceptions ends the process, with code 0."""
    sys.excepthook = lambda *raised: os._exit(0)
    train_with(DistributedDataParallel)
    dist.destroy_process_group()


def leave_in_hook() -> None:
    """The same by ``sys.exit()``, when it has sent a message."""

    def hook(*raised: object) -> None:
        print("training failed:", *raised)
        sys.exit()

    sys.excepthook = hook
    train_with(DistributedDataParallel)
    dist.destroy_process_group()


def end_at_exit() -> None:
    """``atexit.register(os._exit, 0)``, so that no thread of a library delays the end."""
    atexit.register(os._exit, 0)
    train_with(DistributedDataParallel)
    dist.destroy_process_group()


def log_in_hook() -> None:
    """The hook writes a log, also when the process ends, and keeps the exit code."""
    before = sys.excepthook

    def hook(*raised: Any) -> None:
        print("training failed:", raised[1])
        before(*raised)

    sys.excepthook = hook
    atexit.register(print, "the end")
    train_with(DistributedDataParallel)
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
