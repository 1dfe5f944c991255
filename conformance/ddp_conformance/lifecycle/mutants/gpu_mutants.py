"""LIF-01, LIF-07 and LIF-08 with NCCL: programs with the same defects on GPUs.

Where no GPU is the programs train with gloo, so that all but the devices can be tried by hand.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.lifecycle.mutants.programs import (
    RATE,
    Net,
    fit_batch,
    is_last,
    make_loader,
)
from ddp_conformance.lifecycle.subjects import Training

_WAIT = timedelta(seconds=10)
"""NCCL's watchdog ends a rank that has waited so long for a peer; by default ten minutes."""


def train(net: type[Net] = Net) -> Any:
    """Train from the process group to the last step, each rank on a GPU of its own."""
    device = join()
    torch.manual_seed(0)
    model = DistributedDataParallel(net().to(device))
    fit(model, device)
    return model


def join() -> torch.device:
    """The process group, and this rank's device in it; ranks share GPUs where they are fewer."""
    if not (gpus := torch.cuda.device_count()):
        dist.init_process_group("gloo", timeout=_WAIT)
        return torch.device("cpu")
    rank = int(os.environ["LOCAL_RANK"])
    if gpus < int(os.environ["LOCAL_WORLD_SIZE"]):
        # NCCL takes two ranks on one GPU if they seem to be on two hosts (docs/gpus.md).
        os.environ |= {"NCCL_HOSTID": f"{rank}", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}
    device = torch.device("cuda", rank % gpus)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", timeout=_WAIT, device_id=device)
    return device


def fit(model: Any, device: torch.device) -> None:
    """One epoch; waits until the device has made the last step."""
    optimizer = SGD(model.parameters(), RATE)
    for points, targets in moved(make_loader(), device):
        fit_batch(model, optimizer, points, targets)
    if device.type == "cuda":
        torch.cuda.synchronize()


def moved(batches: Iterable[Any], device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches on a device."""
    for points, targets in batches:
        yield points.to(device), targets.to(device)


# ------------------------------------------------------------------ right ones


def train_on_gpus() -> None:
    """A watchdog that does not wait for ten minutes, and a group that is destroyed."""
    train()
    dist.destroy_process_group()


# ------------------------------------------------------------------ wrong ones


class AsksBeyondTheEnd(Net):
    """An index that is too large, which a GPU finds out in a kernel."""

    def forward(self, points: Tensor) -> Tensor:
        beyond = torch.full((1,), len(points) + 1, device=points.device)
        return super().forward(points[beyond] if is_last() else points)


def assert_in_kernel() -> None:
    """A device-side assert on one rank: its peers wait in their gradients' reduction."""
    train(AsksBeyondTheEnd)
    dist.destroy_process_group()


def exit_in_finally() -> None:
    """A launcher script that leaves before NCCL can hang in its teardown."""
    try:
        train()
        dist.destroy_process_group()
    finally:
        os._exit(0)


def wait_for_ever() -> None:
    """The watchdog ends the ranks that wait in a collective, and not the rank that is in none."""
    model = train()
    if is_last():
        threading.Event().wait()
    fit(model, next(model.parameters()).device)
    dist.destroy_process_group()


TRAITS = frozenset({"pads", "gpu"})
MUTANTS = (
    Mutant(Training(run=assert_in_kernel, traits=TRAITS), "LIF-01", "asserts on a GPU", (2,)),
    Mutant(
        Training(run=exit_in_finally, traits=TRAITS, deaths=("raises",), name="leaves_nccl"),
        "LIF-07",
        "finally: os._exit(0), on GPUs",
        (2,),
    ),
    Mutant(
        Training(run=wait_for_ever, traits=TRAITS, timeout=60.0, name="waits_beside_nccl"),
        "LIF-08",
        "a rank waits for ever, on GPUs",
        (2,),
    ),
)

BENIGN_VARIANTS = (
    BenignVariant(
        Training(run=train_on_gpus, traits=TRAITS, patience=60.0),
        "NCCL with a watchdog that waits ten seconds",
        (2,),
    ),
)
