"""Changes of the modules that a data set holds: by the data set itself, or by other code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from types import FrameType
from typing import Any
from unittest import mock

from torch import Tensor, nn

from ddp_conformance.framework.places import is_library

HOOKS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (
        nn.Module,
        (
            *("register_forward_hook", "register_forward_pre_hook", "register_backward_hook"),
            *("register_full_backward_hook", "register_full_backward_pre_hook"),
        ),
    ),
    (Tensor, ("register_hook", "register_post_accumulate_grad_hook")),
)
"""Methods that put a hook on a module, or on a parameter."""


@dataclass(frozen=True)
class Change:
    """A call that put a module into another mode, or a hook on it or on a parameter."""

    owner: nn.Module | Tensor
    callers: tuple[object, ...]
    """``self`` of the methods on the stack, if it can be indexed or iterated, as data sets can."""
    outside: bool
    """True if code of no library called it."""
    mode: bool | None = None
    """None for a hook."""
    hook: Any = None
    """The handle by which the hook is removed."""

    def is_by(self, holder: object) -> bool:
        """Whether a method of ``holder`` was on the stack."""
        return any(caller is holder for caller in self.callers)

    def is_still_there(self) -> bool:
        """Whether a hook has not been removed."""
        hooks = self.hook.hooks_dict_ref()
        return hooks is not None and self.hook.id in hooks


@contextmanager
def followed(changes: list[Change]) -> Iterator[None]:
    """Note all changes in the block."""
    train: Any = nn.Module.train

    @wraps(train)
    def into_mode(module: nn.Module, mode: bool = True) -> Any:
        if module.training != mode:
            changes.append(Change(module, *_callers(sys._getframe(1)), mode=mode))
        return train(module, mode)

    def noting(register: Any) -> Any:
        @wraps(register)
        def registered(owner: nn.Module | Tensor, *args: Any, **kwargs: Any) -> Any:
            handle = register(owner, *args, **kwargs)
            if isinstance(owner, nn.Module | nn.Parameter):
                changes.append(Change(owner, *_callers(sys._getframe(1)), hook=handle))
            return handle

        return registered

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(nn.Module, "train", into_mode))
        for kind, names in HOOKS:
            for name in names:
                own = noting(vars(kind)[name])
                stack.enter_context(mock.patch.object(kind, name, own))
        yield


@contextmanager
def reading_followed(dataset: object, read: Callable[[], None]) -> Iterator[None]:
    """Call ``read`` whenever this process has read from the data set in the block.

    Not for a type whose methods cannot be replaced.
    """

    def getting(get: Any) -> Any:
        @wraps(get)
        def got(holder: object, *args: Any) -> Any:
            item = get(holder, *args)
            if holder is dataset:
                read()
            return item

        return got

    def iterating(iterate: Any) -> Any:
        @wraps(iterate)
        def iterated(holder: object) -> Any:
            return iterate(holder) if holder is not dataset else _each(iterate(holder), read)

        return iterated

    kind: Any = type(dataset)
    ways = {"__getitem__": getting, "__getitems__": getting, "__iter__": iterating}
    with ExitStack() as stack:
        for name in ways.keys() & set(dir(kind)):
            own = ways[name](getattr(kind, name))
            with suppress(TypeError):  # a type of C
                stack.enter_context(mock.patch.object(kind, name, own))
        yield


def _each(items: Iterator[Any], read: Callable[[], None]) -> Iterator[Any]:
    for item in items:
        read()
        yield item


def _callers(frame: FrameType | None) -> tuple[tuple[object, ...], bool]:
    name = "" if frame is None else frame.f_code.co_filename
    found: list[object] = []
    while frame is not None:
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        caller = frame.f_locals.get(names[0]) if names else None
        if hasattr(type(caller), "__getitem__") or hasattr(type(caller), "__iter__"):
            found.append(caller)
        frame = frame.f_back
    return tuple(found), not is_library(name)


class Held:
    """A module of a data set, from when its first sample was read."""

    def __init__(self, module: nn.Module, holder: object, changes: list[Change]) -> None:
        self._module = module
        self._holder = holder
        self._changes = changes
        self._begun = len(changes)
        self._modes = _modes(module)
        self._wants = _wants(module)

    def altered(self) -> str:
        """What other code than the data set's has changed; empty if nothing."""
        for part, mode in zip(self._module.modules(), self._modes, strict=False):
            made = [c for c in self._changes if c.owner is part and c.mode is not None]
            own = [place for place, change in enumerate(made) if change.is_by(self._holder)]
            wanted = made[own[-1]].mode if own else mode
            if part.training != wanted:
                return f"was put into {'training' if part.training else 'evaluation'} mode"
        if _wants(self._module) != self._wants:
            return "has another requires_grad"
        return "has a hook of others" if any(self._hooks()) else ""

    def _hooks(self) -> Iterator[bool]:
        parts = {id(part) for part in (*self._module.modules(), *self._module.parameters())}
        for change in self._changes[self._begun :]:
            if change.mode is None and change.outside and not change.is_by(self._holder):
                yield id(change.owner) in parts and change.is_still_there()


def _modes(module: nn.Module) -> list[bool]:
    return [part.training for part in module.modules()]


def _wants(module: nn.Module) -> list[bool]:
    return [parameter.requires_grad for parameter in module.parameters()]
