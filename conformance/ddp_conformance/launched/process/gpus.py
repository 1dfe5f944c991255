"""A machine where all ranks but one have a GPU, as far as the choice of a backend can see."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist

from ddp_conformance.launched.history import Chose, Happened
from ddp_conformance.launched.journal import Journal
from ddp_conformance.launched.order import Order


class ChosenError(BaseException):
    """The backend is chosen; there is no GPU to go on with. Passes through ``except Exception``."""


def pretend(order: Order, journal: Journal) -> None:
    """Show this rank its GPU, or none, and end its run when it has chosen a backend."""
    has_gpu = order.work.scenario.lone != order.rank
    cuda: Any = torch.cuda
    cuda.is_available = lambda: has_gpu
    cuda.device_count = lambda: order.world_size if has_gpu else 0
    cuda.set_device = lambda device: None
    c10d: Any = dist.distributed_c10d

    @functools.wraps(c10d.init_process_group)
    def choose(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        chosen = backend or ("nccl" if has_gpu else "gloo")
        if "nccl" in chosen and not has_gpu:
            raise RuntimeError("ProcessGroupNCCL is only supported with GPUs, no GPUs found!")
        journal.add(Chose(order.rank, "backend", chosen))
        journal.add(Happened(order.rank, "returned"))
        raise ChosenError(chosen)

    c10d.init_process_group = choose
    dist.init_process_group = choose
