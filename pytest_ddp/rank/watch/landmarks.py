"""Where the phases of torch begin and end: groups, modules, wrapping, compilation, steps.

Set up in the rank alone. What a test file imported from torch it imported before the rank
was forked, so that other names for a function must lead here as well: methods are set on
their class, functions below their decorator. Where torch announces something, the
announcement is used instead.

A plain module's forward is no phase. A global hook would make ``torch.compile`` warn and
trace the hook, and a frame of ours around each call would move warnings to other lines.
Nor is a forward under ``fully_shard``, but for the first: its hooks are a module's own.
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

from pytest_ddp.rank.watch.imports import ImportWatch
from pytest_ddp.rank.watch.lifecycle import Anchor, Lifecycle
from pytest_ddp.rank.watch.uncompiled import hide_own_frames

Label: TypeAlias = str | Callable[[Any], str]
"""The name of a phase, or what makes it of the call's first argument."""


def install(lifecycle: Lifecycle) -> None:
    """Make torch tell ``lifecycle`` what it begins; once in the life of a rank."""
    for name in ("init_process_group", "new_group"):
        _wrap_function(lifecycle, distributed_c10d, name)
    _modules(lifecycle)
    _wrap(lifecycle, DistributedDataParallel, "__init__", "DDP construction")
    _forward(
        lifecycle,
        DistributedDataParallel,
        ("_pre_forward", "_post_forward"),
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


def _within(lifecycle: Lifecycle, original: Callable[..., Any], label: Label) -> Callable[..., Any]:
    """``original``, as a phase."""

    @functools.wraps(original)
    def within(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        # What the compiler traces must be torch's own code and nothing else.
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        depth = lifecycle.enter(label if isinstance(label, str) else label(*args[:1]))
        try:
            return original(*args, **kwargs)
        finally:
            lifecycle.leave(depth)

    return within


def _wrap(lifecycle: Lifecycle, owner: Any, name: str, label: Label) -> None:
    original = getattr(owner, name, None)
    if original is not None:  # an older or newer torch
        setattr(owner, name, _within(lifecycle, original, label))


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
            cell.cell_contents = _within(lifecycle, function, name)


# ------------------------------------------------------------------ modules


def _modules(lifecycle: Lifecycle) -> None:
    initialise: Any = torch.nn.Module.__init__

    @functools.wraps(initialise)
    def begin_construction(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        if not torch.compiler.is_compiling() and not lifecycle.in_torch():
            _enter_construction(lifecycle, self, _getframe(1))
        initialise(self, *args, **kwargs)

    module_type: Any = torch.nn.Module
    module_type.__init__ = begin_construction
    for name in ("to", "cuda"):
        _wrap(lifecycle, module_type, name, functools.partial(_method_label, name))


def _enter_construction(
    lifecycle: Lifecycle, module: torch.nn.Module, frame: FrameType | None
) -> None:
    """Begin the construction of a module that no other one's construction asks for.

    It lasts as long as the call that constructs it; nothing announces its end, and a
    frame of ours around it would be in the way of those that look at their caller's
    arguments, as Lightning's ``save_hyperparameters`` does.
    """
    while frame is not None and _is_method_of(frame, module):
        frame = frame.f_back
    if frame is not None:
        name = f"construction of {type(module).__name__}"
        lifecycle.enter(name, anchor=Anchor.at_call(frame), at=frame)


def _is_method_of(frame: FrameType, module: torch.nn.Module) -> bool:
    code = frame.f_code
    return code.co_argcount > 0 and frame.f_locals.get(code.co_varnames[0]) is module


def _method_label(name: str, module: torch.nn.Module | None = None) -> str:
    return f"{type(module).__name__}.{name}()"


def _forward(
    lifecycle: Lifecycle,
    owner: Any,
    ends: tuple[str, str],
    kind: str,
    is_first: Callable[[Any], bool],
) -> None:
    """The forward of a wrapper, between two functions that it calls first and last."""
    before, after = ends
    pre, post = getattr(owner, before, None), getattr(owner, after, None)
    if pre is None or post is None:
        return

    @functools.wraps(pre)
    def enter(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if not torch.compiler.is_compiling():
            name = f"first forward of {kind}" if is_first(module) else f"forward of {kind}"
            lifecycle.enter(name, anchor=Anchor.within(_getframe(1)))
        return pre(module, *args, **kwargs)

    @functools.wraps(post)
    def leave(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        result = post(module, *args, **kwargs)
        if not torch.compiler.is_compiling():
            lifecycle.leave_anchored(_getframe(1))
        return result

    setattr(owner, before, enter)
    setattr(owner, after, leave)


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
    _wrap(lifecycle, wrapper, "__init__", "FSDP construction")
    ends = ("_root_pre_forward", "_post_forward")
    _forward(lifecycle, module, ends, "FSDP", lambda state: getattr(state, "_is_root", 0) is None)


def _fully_shard(lifecycle: Lifecycle, module: Any) -> None:
    _wrap_function(lifecycle, module, "fully_shard")
    original = getattr(module.FSDPState, "_lazy_init", None)
    if original is None:
        return

    @functools.wraps(original)
    def lazy_init(state: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        frame: FrameType | None = _getframe(1)
        while frame is not None and frame.f_code.co_name != "_call_impl":
            frame = frame.f_back
        if state._is_root is None and frame is not None:
            lifecycle.enter("first forward under fully_shard", anchor=Anchor.within(frame))
        return original(state, *args, **kwargs)

    module.FSDPState._lazy_init = lazy_init
