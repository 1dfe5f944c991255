"""Announce the begin and end of a call without adding a frame of ours to the stack.

With a frame between a function and its caller, a warning with ``stacklevel``, a logger or
``sys._getframe(1)`` would find our frame instead of the caller, and a warning filter by the
caller's module would miss.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from sys import _getframe
from types import FrameType, FunctionType, MethodType
from typing import Any

import torch

End = Callable[[], None]
Begin = Callable[[Any, FrameType], End | None]
"""Takes the method's instance, or None, and the calling frame; returns what to call at the end."""


class Announced:
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
        return MethodType(Announced(self.__wrapped__, self._begin, instance), instance)

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
