"""Changes functions that are written in C, wherever they are kept.

A name can be given another function, but not a default argument, a partial, or what a module has
imported under a name of its own: all of these keep the function itself. So its fields are changed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeAlias

Function: TypeAlias = Callable[..., Any]


class _Method(ctypes.Structure):
    """``PyMethodDef``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("calls", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_VALUES_IN_A_TUPLE = 0x0001
"""``METH_VARARGS``."""
_WITH_NAMES = 0x0002
"""``METH_KEYWORDS``."""
_FAST_CALL = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_void_p
)
"""The type of ``METH_FASTCALL | METH_KEYWORDS``: takes the owner, the values, how many of them have
no name, and the names of the others. One of ``METH_NOARGS`` takes the owner alone."""


class _Owner(ModuleType):
    """What a function belongs to: a module, for pickle and for its text."""

    def __init__(self, function: Function) -> None:
        super().__init__("owner")
        self._function = function

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._function(*arguments, **options)


@contextmanager
def calling(function: Function, other: Function) -> Iterator[None]:
    """A block in which a function of a module calls another one."""
    # A function is called with its owner first, as PyObject_Call is with what it is to call.
    flags = _VALUES_IN_A_TUPLE | _WITH_NAMES
    call = ctypes.cast(ctypes.pythonapi.PyObject_Call, ctypes.c_void_p).value
    method = _Method(function.__name__.encode(), call, flags, None)
    owner = _Owner(other)
    fields = _fields(function)
    before = fields[:]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
    # At once, as other threads may call it.
    fields[:] = [ctypes.addressof(method), id(owner), *before[2:4], None]
    try:
        yield
    finally:
        fields[:] = before
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(owner))


@contextmanager
def returning(method: Function, change: Function) -> Iterator[None]:
    """A block in which a class method returns what ``change`` makes of its result.

    It may take no arguments, or some with names. If it raises, this is a ``SystemError``.
    """
    shared = _Method.from_address(_fields(method)[0])  # by all objects of this method
    real = _Method.from_buffer_copy(shared)

    def call(owner: object, values: int | None, count: int, names: int | None) -> Any:
        if not real.flags & _WITH_NAMES:
            return change(_made(real, owner, None)())
        keys: tuple[str, ...] = ctypes.cast(names, ctypes.py_object).value if names else ()
        given = list((ctypes.py_object * (count + len(keys))).from_address(values or 0))
        options = dict(zip(keys, given[count:], strict=True))
        return change(_made(real, owner, None)(*given[:count], **options))

    changed = _FAST_CALL(call)
    shared.calls = ctypes.cast(changed, ctypes.c_void_p).value
    try:
        yield
    finally:
        shared.calls = real.calls


def copy(function: Function) -> Function:
    """A function of a module that stays as it is now."""
    method = _Method.from_address(_fields(function)[0])
    return _made(method, function.__self__, function.__module__)  # type: ignore[attr-defined]


def _fields(function: Function) -> Any:
    """The fields of a ``PyCFunctionObject``: method, owner, module, weak references, and its fast
    call.
    """
    return (ctypes.c_void_p * 5).from_address(id(function) + object.__basicsize__)


def _made(method: _Method, owner: object, module: str | None) -> Function:
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, *[ctypes.py_object] * 2]
    made: Function = make(ctypes.addressof(method), owner, module)
    return made
