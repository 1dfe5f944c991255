"""Record the entry's calls of torch: groups, loaders, wrappers, optimizers, files.

Names are replaced in torch's modules before the user's are imported; the process is given
up after the run, so that nothing is put back.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp as fsdp
from torch import nn
from torch._dynamo.eval_frame import OptimizedModule
from torch.distributed.fsdp import _fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ddp_conformance.framework.places import is_ours
from ddp_conformance.launched.history import Chose, Compiled, Happened, Stage
from ddp_conformance.launched.journal import Journal
from ddp_conformance.launched.order import Order
from ddp_conformance.launched.process import gpus, saving
from ddp_conformance.launched.process.delays import Nemesis
from ddp_conformance.launched.process.fetching import Fetching
from ddp_conformance.launched.process.optimizing import Optimizing
from pytest_ddp.rank.operations.origins import user_frame

Function = Callable[..., Any]


class EntryWatch:
    """All that one rank records of its entry."""

    def __init__(self, order: Order, journal: Journal, nemesis: Nemesis) -> None:
        self._order = order
        self._journal = journal
        self._nemesis = nemesis
        self._optimizing = Optimizing(order.rank, journal, nemesis)
        index = None if order.work.index is None else order.work.index.load()
        self._fetching = Fetching(order.rank, journal, index)
        self._bare: set[str] = set()
        self._noted: weakref.ref[nn.Module] | None = None
        self._depth = 0
        self._kept: list[nn.Module] = []

    def install(self) -> None:
        """Replace torch's names; once in the life of a process."""
        if self._order.work.scenario.lone is not None:
            gpus.pretend(self._order, self._journal)
        if self._order.work.scenario.eager:
            torch._dynamo.config.disable = True
        for module in (dist, dist.distributed_c10d):
            self._around(module, "init_process_group", "init_process_group", self._group_made)
            self._around(module, "destroy_process_group", "destroy_process_group")
        for wrapper in (DistributedDataParallel, fsdp.FullyShardedDataParallel):
            self._around(wrapper, "__init__", "wrap", self._wrapped, self._unwrapped)
        for module in (fsdp, _fully_shard):
            self._around(module, "fully_shard", "wrap", self._sharded, self._unwrapped)
        self._around(Optimizer, "__init__", "optimizer")
        self._around(torch, "compile", "compile", before=self._unwrapped)
        self._around(nn.Module, "compile", "compile", before=self._unwrapped)
        self._around(torch.utils.data.DataLoader, "__init__", "loader", self._loader_made)
        self._optimizing.install()
        self._fetching.install(self._optimizing)
        saving.install(self._order, self._journal, self._nemesis, self._bare)

    def close(self) -> None:
        """Stop recording: the entry has returned, and later calls are not its own."""
        self._depth += 1
        self._fetching.close()
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        self._journal.add(Compiled(self._order.rank, graphs))

    # ------------------------------------------------------------------ stages

    def _around(
        self,
        owner: Any,
        name: str,
        stage: Stage,
        after: Function | None = None,
        before: Function | None = None,
    ) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def staged(*args: Any, **kwargs: Any) -> Any:
            # Wrappers make their parts by the same names, and the compiler traces them.
            if self._depth or torch.compiler.is_compiling():
                return original(*args, **kwargs)
            self._nemesis.at_stage()
            self._journal.add(Happened(self._order.rank, stage, _site(sys._getframe(1))))
            self._depth += 1
            try:
                if before is not None:
                    before(*args, **kwargs)
                made = original(*args, **kwargs)
                if after is not None:
                    after(*args, **kwargs)
            finally:
                self._depth -= 1
            self._nemesis.at_stage()
            return made

        setattr(owner, name, staged)

    def _group_made(self, *args: Any, **kwargs: Any) -> None:
        self._journal.add(Chose(self._order.rank, "backend", dist.get_backend()))
        self._journal.add(Chose(self._order.rank, "world size", str(dist.get_world_size())))

    def _loader_made(self, loader: Any, *args: Any, **kwargs: Any) -> None:
        self._fetching.made(loader)

    def _unwrapped(self, *args: Any, **kwargs: Any) -> None:
        """Note the names that the module has before it is wrapped or compiled.

        The first one counts, until one comes that it is a part of.
        """
        module = next((a for a in (*args, *kwargs.values()) if _is_bare(a)), None)
        noted = None if self._noted is None else self._noted()
        if module is None or (noted is not None and all(p is not noted for p in module.modules())):
            return
        if noted is None or all(not _is_wrapper(part) for part in module.modules()):
            self._noted = weakref.ref(module)
            self._bare.clear()
            # The user's own methods are for the user's program to call.
            self._bare.update(name for name, _ in nn.Module.named_parameters(module))
            self._bare.update(name for name, _ in nn.Module.named_buffers(module))

    def _wrapped(self, wrapper: nn.Module, *args: Any, **kwargs: Any) -> None:
        device = next((p.device.type for p in nn.Module.parameters(wrapper)), "")
        self._journal.add(Chose(self._order.rank, "device", device))
        self._optimizing.wrapped(wrapper)
        if isinstance(wrapper, DistributedDataParallel):
            # Freed after destroy_process_group, as most programs end, its reducer is the last
            # owner of the group: it joins the group's threads and holds the GIL, for which one
            # of them may wait (a hang that was seen with torch 2.13, on a busy machine).
            self._kept.append(wrapper)

    def _sharded(self, *args: Any, **kwargs: Any) -> None:
        module = args[0] if args else kwargs["module"]
        for part in module if isinstance(module, list | tuple) else [module]:
            self._wrapped(part)


def _is_bare(thing: object) -> bool:
    return isinstance(thing, nn.Module) and not _is_wrapper(thing)


def _is_wrapper(thing: nn.Module) -> bool:
    wrappers = (DistributedDataParallel, fsdp.FullyShardedDataParallel, OptimizedModule)
    return isinstance(thing, wrappers)


def _site(frame: FrameType | None) -> str:
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    user = user_frame(frame)
    return "" if user is None else f"{os.path.basename(user.f_code.co_filename)}:{user.f_lineno}"
