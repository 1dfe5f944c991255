"""How a program leaves its process group."""

from __future__ import annotations

import gc

import torch.distributed as dist

# Its functions take the default group of the moment of this import as their default argument
# (torch 2.13). The wrap in DDP imports it, and would so keep the group for ever.
import torch.distributed.nn.functional  # noqa: F401


def leave_group() -> None:
    """Destroy the default process group, if there is one, and see its threads to their end.

    Whoever still holds the group, as a DDP model does, keeps its threads beyond
    ``destroy_process_group``. One of gloo's that drops the last tensor while the interpreter
    ends is stopped in the middle of it: "terminate called without an active exception",
    SIGABRT, in one of ten runs of a small program on two ranks (torch 2.13). A model is often
    part of a reference cycle, so garbage is collected first; the caller must hold none.
    """
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()
