"""Where the phases of torch begin and end: groups, modules, wrapping, compilation, steps.

Set up in the rank alone. What a test file imported from torch it imported before the rank
was forked, so that other names for a function must lead here as well: methods are set on
their class, functions below their decorator. Where torch announces something, the
announcement is used instead. No frame of ours stands between torch's and its caller's, which
would move warnings to other lines.

A plain module's forward is no phase: a global hook would make ``torch.compile`` warn and
trace the hook. Nor is a forward under ``fully_shard``, but for the first: its hooks are a
module's own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from sys import _getframe
from types import FrameType, ModuleType
from typing import Any, TypeAlias

import torch
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from pytest_ddp.rank.watch.announced import Announced, End
from pytest_ddp.rank.watch.imports import ImportWatch
from pytest_ddp.rank.watch.lifecycle import Anchor, Lifecycle
from pytest_ddp.rank.watch.uncompiled import hide_own_frames

Label: TypeAlias = str | Callable[[Any], str]
"""The name of a phase, or what makes it of a method's instance."""


def install(lifecycle: Lifecycle) -> None:
    """Make torch tell ``lifecycle`` what it begins; once in the life of a rank."""
    for name in ("init_process_group", "new_group"):
        _wrap_function(lifecycle, distributed_c10d, name)
    _modules(lifecycle)
    _wrapper(
        lifecycle,
        DistributedDataParallel,
        "DDP",
        lambda module: not getattr(module, "_lazy_init_ran", True),
    )
    for module in (torch.autograd, torch.autograd.graph):
        # torch.compiler takes the one for the other.
        _wrap(lifecycle, module, "_engine_run_backward", "backward")
    _optimizers(lifecycle)
    watch = ImportWatch()
    watch.when_imported("torch._dynamo.eval_frame", hide_own_frames)
    for name, when_imported in {
        "torch._dynamo.callback": _compilation,
        "torch.distributed.fsdp.fully_sharded_data_parallel": _fsdp,
        "torch.distributed.fsdp._fully_shard._fully_shard": _fully_shard,
    }.items():
        watch.when_imported(name, functools.partial(when_imported, lifecycle))


# ------------------------------------------------------------------ calls that are phases


def _wrap(lifecycle: Lifecycle, owner: Any, name: str, label: Label) -> None:
    original = getattr(owner, name, None)
    if original is not None:  # an older or newer torch
        setattr(owner, name, _as_phase(lifecycle, original, label))


def _as_phase(lifecycle: Lifecycle, original: Any, label: Label) -> Announced:
    def begin(instance: Any, caller: FrameType) -> End:
        name = label if isinstance(label, str) else label(instance)
        return functools.partial(lifecycle.leave, lifecycle.enter(name))

    return Announced(original, begin)


def _wrap_function(lifecycle: Lifecycle, module: ModuleType, name: str) -> None:
    """Wrap a function that others may have imported by name.

    They hold its decorator's wrapper; what that calls is a variable of its closure.
    """
    decorated: Any = None
    function = getattr(module, name, None)
    while (inner := getattr(function, "__wrapped__", None)) is not None:
        decorated, function = function, inner
    if decorated is None:
        _wrap(lifecycle, module, name, name)
        return
    for cell in decorated.__closure__ or ():
        if cell.cell_contents is function:
            cell.cell_contents = _as_phase(lifecycle, function, name)


# ------------------------------------------------------------------ modules


def _modules(lifecycle: Lifecycle) -> None:
    """``Module.__init__`` logs its use before all else, by a function that can be replaced."""
    core: Any = torch._C
    log = getattr(core, "_log_api_usage_once", None)
    if log is not None:  # an older or newer torch
        initialise = torch.nn.Module.__init__.__code__

        @functools.wraps(log)
        def begin_construction(event: str) -> None:
            frame = _getframe(1)
            if frame.f_code is initialise and not lifecycle.in_torch():
                _enter_construction(lifecycle, frame.f_locals["self"], frame)
            log(event)

        core._log_api_usage_once = begin_construction
    for name in ("to", "cuda"):
        _wrap(lifecycle, torch.nn.Module, name, functools.partial(_method_label, name))


def _enter_construction(
    lifecycle: Lifecycle, module: torch.nn.Module, frame: FrameType | None
) -> None:
    """Begin the construction of a module that no other one's construction asks for.

    It lasts as long as the call that constructs it; nothing announces its end.
    """
    while frame is not None and _is_method_of(frame, module):
        frame = frame.f_back
    if frame is not None:
        name = f"construction of {type(module).__name__}"
        lifecycle.enter(name, anchor=Anchor.at_call(frame), at=frame)


def _is_method_of(frame: FrameType, module: torch.nn.Module) -> bool:
    code = frame.f_code
    return code.co_argcount > 0 and frame.f_locals.get(code.co_varnames[0]) is module


def _method_label(name: str, module: torch.nn.Module | None) -> str:
    # Without a module it was called by way of its class.
    return f"{'Module' if module is None else type(module).__name__}.{name}()"


def _wrapper(lifecycle: Lifecycle, owner: Any, kind: str, is_first: Callable[[Any], bool]) -> None:
    """A module that wraps others: its construction and its forward."""
    _wrap(lifecycle, owner, "__init__", f"{kind} construction")
    forward = f"forward of {kind}"
    _wrap(lifecycle, owner, "forward", lambda module: "first " * is_first(module) + forward)


# ------------------------------------------------------------------ steps


def _optimizers(lifecycle: Lifecycle) -> None:
    def enter(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            name = f"{type(optimizer).__name__}.step()"
            lifecycle.enter(name, anchor=Anchor.within(_getframe(1)))

    def leave(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            lifecycle.leave_anchored(_getframe(1))

    register_optimizer_step_pre_hook(enter)
    register_optimizer_step_post_hook(leave)


# ------------------------------------------------------------------ what is imported late


def _compilation(lifecycle: Lifecycle, callback: Any) -> None:
    """Not by its callbacks: ``torch._dynamo.reset()`` forgets them."""
    handler: Any = getattr(callback, "CompilationCallbackHandler", None)
    original: Any = getattr(handler, "install_callbacks", None)
    if original is None:
        return

    @functools.wraps(original)
    @contextlib.contextmanager
    def install_callbacks(*args: Any, **kwargs: Any) -> Iterator[None]:
        depth = lifecycle.enter("compilation")
        try:
            with original(*args, **kwargs):
                yield
        finally:
            lifecycle.leave(depth)

    handler.install_callbacks = install_callbacks


def _fsdp(lifecycle: Lifecycle, module: Any) -> None:
    wrapper = module.FullyShardedDataParallel
    _wrapper(lifecycle, wrapper, "FSDP", lambda state: getattr(state, "_is_root", 0) is None)


def _fully_shard(lifecycle: Lifecycle, module: Any) -> None:
    _wrap_function(lifecycle, module, "fully_shard")
    original = getattr(module.FSDPState, "_lazy_init", None)
    if original is None:
        return

    def begin(state: Any, caller: FrameType) -> None:
        frame: FrameType | None = caller
        while frame is not None and frame.f_code.co_name != "_call_impl":
            frame = frame.f_back
        if getattr(state, "_is_root", 0) is None and frame is not None:
            lifecycle.enter("first forward under fully_shard", anchor=Anchor.within(frame))

    module.FSDPState._lazy_init = Announced(original, begin)
