"""Changes of the modules that a data set holds: by the data set itself, or by other code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from types import FrameType
from typing import Any
from unittest import mock

from torch import nn

from ddp_conformance.framework.places import is_library

HOOKS = ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook")
TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")


@dataclass(frozen=True)
class Change:
    """A call that put a module into another mode, or a hook on it."""

    module: nn.Module
    callers: tuple[object, ...]
    """``self`` of the methods on the stack, if it can be indexed or iterated, as data sets can."""
    outside: bool
    """True if code of no library called it."""
    mode: bool | None = None
    """None for a hook."""
    hook: int = -1
    """The hook's number, in the module's tables."""

    def is_by(self, holder: object) -> bool:
        """Whether a method of ``holder`` was on the stack."""
        return any(caller is holder for caller in self.callers)


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
        def registered(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            handle = register(module, *args, **kwargs)
            changes.append(Change(module, *_callers(sys._getframe(1)), hook=handle.id))
            return handle

        return registered

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(nn.Module, "train", into_mode))
        for name in HOOKS:
            own = noting(vars(nn.Module)[name])
            stack.enter_context(mock.patch.object(nn.Module, name, own))
        yield


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
            made = [c for c in self._changes if c.module is part and c.mode is not None]
            own = [place for place, change in enumerate(made) if change.is_by(self._holder)]
            wanted = made[own[-1]].mode if own else mode
            if part.training != wanted:
                return f"was put into {'training' if part.training else 'evaluation'} mode"
        if _wants(self._module) != self._wants:
            return "has another requires_grad"
        return "has a hook of others" if any(self._hooks()) else ""

    def _hooks(self) -> Iterator[bool]:
        parts = [*self._module.modules()]
        for change in self._changes[self._begun :]:
            if change.mode is None and change.outside and not change.is_by(self._holder):
                own = [part for part in parts if part is change.module]
                yield any(change.hook in vars(part)[table] for part in own for table in TABLES)


def _modes(module: nn.Module) -> list[bool]:
    return [part.training for part in module.modules()]


def _wants(module: nn.Module) -> list[bool]:
    return [parameter.requires_grad for parameter in module.parameters()]
