"""The backend and the device of launched ranks: those of the test's ranks that they stand for.

Without GPUs they communicate by gloo, whatever the test's backend is.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ddp_conformance.framework.ranks import Ranks, RanksOfATest, gpu_of


@dataclass(frozen=True, slots=True)
class RankDevice:
    """What the process group of a rank is made for."""

    backend: str = "gloo"
    device: str = "cpu"
    host: str = ""
    """``NCCL_HOSTID``, with which NCCL takes several ranks on one GPU; empty if it is not set."""


def devices_of(ranks: Ranks) -> tuple[RankDevice, ...]:
    """The device of each rank of the test; empty where one has no GPU. Every rank calls it."""
    own = RankDevice()
    if isinstance(ranks, RanksOfATest) and gpu_of(ranks) is not None:
        host = os.environ.get("NCCL_HOSTID", "")
        own = RankDevice(ranks.backend, str(ranks.device), host)
    devices = tuple(ranks.gather(own))
    return () if RankDevice() in devices else devices


def join(own: RankDevice) -> None:
    """Make the default process group; a GPU is the current device, as in a rank of the test."""
    if own.host:
        os.environ["NCCL_HOSTID"] = own.host
    device = torch.device(own.device)
    if device.type != "cpu":
        torch.get_device_module(device).set_device(device)
    # As the plugin does. gloo would look for communicators on the device.
    dist.init_process_group(own.backend, device_id=None if own.backend == "gloo" else device)
    if own.backend == "gloo":
        # It connects in the background. A rank that leaves or dies before its peers have connected
        # makes them fail here, so that nothing would be seen of what the user's code does then.
        dist.barrier()


def leave() -> None:
    """Destroy the default process group, unless the subject's code has done so."""
    if dist.is_initialized():
        dist.destroy_process_group()
