"""Reports the begin and end of torch's phases: groups, modules, wrapping, compilation, steps.

Installed in the rank alone. A test file may have imported names from torch before the rank was
forked, so that other references to a function must lead here as well: methods are set on their
class, functions below their decorator. Where torch offers a hook, the hook is used. No frame of
ours comes between torch's function and its caller, as that would move warnings to other lines.

The forward of a plain module is not a phase: a global hook would make ``torch.compile`` warn and
trace the hook. Under ``fully_shard``, only the first forward is one: its hooks are the module's
own.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from sys import _getframe
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

import torch
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from pytest_ddp.rank.status.phase_stack import BACKWARD, Anchor, PhaseStack
from pytest_ddp.rank.status.uncompiled import hide_own_frames

# ------------------------------------------------------------------
# Announce the begin and end of a call without adding a frame of ours to the stack.
#
# With a frame between a function and its caller, a warning with ``stacklevel``, a logger or
# ``sys._getframe(1)`` would find our frame instead of the caller, and a warning filter by the
# caller's module would miss.

End = Callable[[], None]
Begin = Callable[[Any, FrameType], End | None]
"""Takes the method's instance, or None, and the calling frame; returns what to call at the end."""


class TransparentWrapper:
    """Replaces a function or method, and is not recognisable as a replacement.

    To call an object, Python first looks up ``__call__`` on its type. Here ``__call__`` is a
    property: its getter announces the call and has returned before Python calls the result, so that
    the caller's frame calls the original directly.
    """

    def __init__(self, original: Any, begin: Begin, instance: Any = None) -> None:
        self.__wrapped__ = original
        self.__module__ = original.__module__
        self.__doc__ = original.__doc__
        self._begin = begin
        self._instance = instance

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        # The compiler must trace torch's own code and nothing else.
        if torch.compiler.is_compiling():
            return functools.partial(self.__wrapped__, instance)
        return MethodType(TransparentWrapper(self.__wrapped__, self._begin, instance), instance)

    @property
    def __call__(self) -> Any:
        if torch.compiler.is_compiling():
            return self.__wrapped__
        end = self._begin(self._instance, _getframe(1))
        if end is None:
            return self.__wrapped__
        call = _Call(self.__wrapped__)
        call.end = end
        return call

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        # unittest.mock, inspect and cloudpickle check whether it is a function.
        return FunctionType

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __reduce__(self) -> str:
        name: str = self.__qualname__
        return name


class _Call(functools.partial[Any]):
    """A partial object has no Python frame, and Python frees it when its call has returned."""

    end: End

    def __del__(self) -> None:
        self.end()


# ------------------------------------------------------------------
# Run a callback when a module is imported, without importing it.

Then = Callable[[ModuleType], None]


class ImportWatch(importlib.abc.MetaPathFinder):
    """A finder that finds no modules of its own: it adds a step to the loading of watched ones."""

    def __init__(self) -> None:
        self._then: dict[str, Then] = {}

    def when_imported(self, name: str, then: Then) -> None:
        """Call ``then`` with the module: at once if it is imported already, else when it is."""
        module = sys.modules.get(name)
        if module is not None:
            then(module)
            return
        self._then[name] = then
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a watched module, with a loader that runs the callback; None for others."""
        if fullname not in self._then:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            then = self._then.pop(fullname, None)
            if then is not None:
                then(module)

        # Set on this one loader, so that its type and its other methods stay as they are.
        loader.exec_module = exec_module
        return spec


Label: TypeAlias = str | Callable[[Any], str]
"""The name of a phase, or a function that makes it from a method's instance."""


def install(phase_stack: PhaseStack) -> None:
    """Report what torch begins and ends to ``phase_stack``; called once in the life of a rank."""
    for name in ("init_process_group", "new_group"):
        _wrap_function(phase_stack, distributed_c10d, name)
    _modules(phase_stack)
    _wrapper(
        phase_stack,
        DistributedDataParallel,
        "DDP",
        lambda module: not getattr(module, "_lazy_init_ran", True),
    )
    for module in (torch.autograd, torch.autograd.graph):
        # torch.compiler takes one of the two names for the other.
        _wrap(phase_stack, module, "_engine_run_backward", BACKWARD)
    _optimizers(phase_stack)
    watch = ImportWatch()
    watch.when_imported("torch._dynamo.eval_frame", hide_own_frames)
    for name, when_imported in {
        "torch._dynamo.callback": _compilation,
        "torch.distributed.fsdp.fully_sharded_data_parallel": _fsdp,
        "torch.distributed.fsdp._fully_shard._fully_shard": _fully_shard,
    }.items():
        watch.when_imported(name, functools.partial(when_imported, phase_stack))


# ------------------------------------------------------------------ calls that are phases


def _wrap(phase_stack: PhaseStack, owner: Any, name: str, label: Label) -> None:
    original = getattr(owner, name, None)
    if original is not None:  # missing in an older or newer torch
        setattr(owner, name, _as_phase(phase_stack, original, label))


def _as_phase(phase_stack: PhaseStack, original: Any, label: Label) -> TransparentWrapper:
    def begin(instance: Any, caller: FrameType) -> End:
        name = label if isinstance(label, str) else label(instance)
        return functools.partial(phase_stack.leave, phase_stack.enter(name))

    return TransparentWrapper(original, begin)


def _wrap_function(phase_stack: PhaseStack, module: ModuleType, name: str) -> None:
    """Wrap a function that other modules may have imported by name.

    Their name refers to its decorator's wrapper, which has the function in its closure.
    """
    decorated: Any = None
    function = getattr(module, name, None)
    while (inner := getattr(function, "__wrapped__", None)) is not None:
        decorated, function = function, inner
    if decorated is None:
        _wrap(phase_stack, module, name, name)
        return
    for cell in decorated.__closure__ or ():
        if cell.cell_contents is function:
            cell.cell_contents = _as_phase(phase_stack, function, name)


# ------------------------------------------------------------------ modules


def _modules(phase_stack: PhaseStack) -> None:
    """Begin a phase for each constructed module: ``Module.__init__`` first logs its API usage."""
    core: Any = torch._C
    log = getattr(core, "_log_api_usage_once", None)
    if log is not None:  # missing in an older or newer torch
        initialise = torch.nn.Module.__init__.__code__

        @functools.wraps(log)
        def begin_construction(event: str) -> None:
            frame = _getframe(1)
            if frame.f_code is initialise and not phase_stack.in_torch():
                _enter_construction(phase_stack, frame.f_locals["self"], frame)
            log(event)

        core._log_api_usage_once = begin_construction
    for name in ("to", "cuda"):
        _wrap(phase_stack, torch.nn.Module, name, functools.partial(_method_label, name))


def _enter_construction(
    phase_stack: PhaseStack, module: torch.nn.Module, frame: FrameType | None
) -> None:
    """Begin the construction of a module that is not a part of another module's construction.

    The phase lasts as long as the call of the module's class, since nothing announces its end.
    """
    while frame is not None and _is_method_of(frame, module):
        frame = frame.f_back
    if frame is not None:
        name = f"construction of {type(module).__name__}"
        phase_stack.enter(name, anchor=Anchor.at_call(frame), at=frame)


def _is_method_of(frame: FrameType, module: torch.nn.Module) -> bool:
    code = frame.f_code
    return code.co_argcount > 0 and frame.f_locals.get(code.co_varnames[0]) is module


def _method_label(name: str, module: torch.nn.Module | None) -> str:
    # Without a module, the method was called through its class.
    return f"{'Module' if module is None else type(module).__name__}.{name}()"


def _wrapper(
    phase_stack: PhaseStack, owner: Any, kind: str, is_first: Callable[[Any], bool]
) -> None:
    """Phases of a module that wraps others: its construction and its forward."""
    _wrap(phase_stack, owner, "__init__", f"{kind} construction")
    forward = f"forward of {kind}"
    _wrap(phase_stack, owner, "forward", lambda module: "first " * is_first(module) + forward)


# ------------------------------------------------------------------ steps


def _optimizers(phase_stack: PhaseStack) -> None:
    def enter(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            name = f"{type(optimizer).__name__}.step()"
            phase_stack.enter(name, anchor=Anchor.within(_getframe(1)))

    def leave(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            phase_stack.leave_anchored(_getframe(1))

    register_optimizer_step_pre_hook(enter)
    register_optimizer_step_post_hook(leave)


# ------------------------------------------------------------------ what is imported late


def _compilation(phase_stack: PhaseStack, callback: Any) -> None:
    """Begin a phase for each compilation.

    torch's public compilation callbacks are not used: ``torch._dynamo.reset()`` drops them.
    """
    handler: Any = getattr(callback, "CompilationCallbackHandler", None)
    original: Any = getattr(handler, "install_callbacks", None)
    if original is None:
        return

    @functools.wraps(original)
    @contextlib.contextmanager
    def install_callbacks(*args: Any, **kwargs: Any) -> Iterator[None]:
        depth = phase_stack.enter("compilation")
        try:
            with original(*args, **kwargs):
                yield
        finally:
            phase_stack.leave(depth)

    handler.install_callbacks = install_callbacks


def _fsdp(phase_stack: PhaseStack, module: Any) -> None:
    wrapper = module.FullyShardedDataParallel
    _wrapper(phase_stack, wrapper, "FSDP", lambda state: getattr(state, "_is_root", 0) is None)


def _fully_shard(phase_stack: PhaseStack, module: Any) -> None:
    _wrap_function(phase_stack, module, "fully_shard")
    original = getattr(module.FSDPState, "_lazy_init", None)
    if original is None:
        return

    def begin(state: Any, caller: FrameType) -> None:
        frame: FrameType | None = caller
        while frame is not None and frame.f_code.co_name != "_call_impl":
            frame = frame.f_back
        if getattr(state, "_is_root", 0) is None and frame is not None:
            phase_stack.enter("first forward under fully_shard", anchor=Anchor.within(frame))

    module.FSDPState._lazy_init = TransparentWrapper(original, begin)
