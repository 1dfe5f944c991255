"""Where the phases of torch begin and end: groups, modules, wrapping, compilation, steps.

Made in the rank alone. What a test file imported from torch it imported before the rank
was forked, so that other names for a function must lead here as well: methods are set on
their class, functions below their decorator. Where torch announces something, the
announcement is used instead.

A plain module's forward is no phase. A global hook would make ``torch.compile`` warn and
trace the hook, and a frame around each call would move warnings to other lines.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
import weakref
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from pytest_ddp.rank.lifecycle import Anchor, Lifecycle

Label = Callable[[tuple[Any, ...]], str]
"""The name of a phase, by the arguments of the call that it is."""


def install(lifecycle: Lifecycle) -> None:
    """Make torch tell ``lifecycle`` what it begins; once in the life of a rank."""
    for function in ("init_process_group", "new_group"):
        _wrap_function(lifecycle, distributed_c10d, function, function)
    _modules(lifecycle)
    _wrap_method(lifecycle, torch.nn.parallel.DistributedDataParallel, "__init__", _fixed("DDP"))
    _forward(lifecycle, torch.nn.parallel.DistributedDataParallel, "DDP")
    for module in (torch.autograd, torch.autograd.graph):
        # torch.compiler restores the one from the other.
        _wrap_method(lifecycle, module, "_engine_run_backward", lambda _: "backward")
    _optimizers(lifecycle)
    watch = _Watch()
    watch.when_imported("torch._dynamo.callback", functools.partial(_compilation, lifecycle))
    watch.when_imported(
        "torch.distributed.fsdp.fully_sharded_data_parallel", functools.partial(_fsdp, lifecycle)
    )
    watch.when_imported(
        "torch.distributed.fsdp._fully_shard._fully_shard",
        functools.partial(_fully_shard, lifecycle),
    )
