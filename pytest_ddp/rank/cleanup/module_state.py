"""Detects whether modules keep other state than before: what a library has once per process.

Libraries keep state in a module's globals, in class attributes, in a singleton's attributes, in
``functools.cache``, in closures and default arguments. Other code cannot restore it, so this module
only detects whether any of it has changed.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, NamedTuple, TypeAlias

import pytest
import torch

from pytest_ddp.rank.startup.ownership import top_of, tops_of
from pytest_ddp.system.stdlib import gc, threading

_CODE_ONLY = frozenset(
    {"torch", "numpy", "pytest_ddp", "ddp_conformance", "pytest", "_pytest", "pluggy"}
    | {"sympy", "mpmath"}
)
"""Packages of which only replaced code counts. The rank restores torch's state, as far as tests can
change it, by name (``Settings`` in ``cleanup.py``), and the rest of it is caches. torch's compiler
does its algebra with sympy, which has more functions and classes than all else that it imports."""
_MOST = 500_000
"""Objects that are examined; with more of them the state is unknown, and counts as changed."""
_LARGE = 10_000
"""Containers with more entries are compared by length: they are data, not state."""
_PLAIN = frozenset({int, float, complex, str, bytes, bool, type(None)})
"""Types of values that are compared by equality, all others by identity."""
_NOTES = frozenset({"__warningregistry__", "__annotations__"})
_CODE = (FunctionType, type, staticmethod, classmethod, property)
_CONTAINERS = (list, set, frozenset, deque, tuple)
_IMMUTABLE = (tuple, frozenset)
"""Types of containers whose items cannot change, and are examined themselves."""
_WEAK = (weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary)

Content: TypeAlias = dict[Any, Any]
Read: TypeAlias = Callable[[Any], Content]


class _Holder(NamedTuple):
    """An object that keeps state: how to read it, and what it held."""

    read: Read
    thing: Any
    held: Content

    def has_changed(self) -> bool:
        now = self.read(self.thing)
        return len(now) != len(self.held) or any(
            name not in now or not _same(value, now[name]) for name, value in self.held.items()
        )


class _Kind(NamedTuple):
    """What is known of all objects of one type, so that it is computed once for all of them."""

    read: Read
    counts: bool | None
    """Whether such objects are examined; None where it depends on the object's own module."""


class ModuleState:
    """The state that all modules of a process hold at one moment."""

    def __init__(self, code_only: Iterable[str] = ()) -> None:
        """
        Args:
            code_only: more packages of which only replaced code counts, such as plugins that keep
                records about the tests.
        """
        self._code_only = _CODE_ONLY | sys.stdlib_module_names | frozenset(code_only)
        self._modules = frozenset(self._others())
        self._holders: list[_Holder] = []
        self._codes: list[tuple[Any, Content]] = []
        """Namespaces of modules and classes of which only code counts, with their values."""
        self._kinds: dict[int, _Kind] = {}
        """Kinds of objects by the id of the type, since a metaclass may define what its classes are
        equal to."""
        self._seen: dict[int, Any] = {}
        """Examined objects by id; kept alive, so that no other object gets the id of one."""
        self._todo: list[Any] = []
        self._is_complete = False
        for name, module in list(sys.modules.items()):
            self._take(name, module)
        with contextlib.suppress(Exception):  # user objects may raise anything, here and below
            # A loop with a list instead of recursion: users' objects may be nested deeply.
            while self._todo and len(self._seen) < _MOST:
                self._look_into(self._todo.pop())
            self._is_complete = not self._todo
        self._todo.clear()
        self._kinds.clear()

    def has_changed(self) -> bool:
        """Whether any state differs, or is unknown.

        The state of a module that was imported since then is unknown: it may have changed after
        its import.
        """
        try:
            return self._differs()
        except Exception:  # a user object may raise anything when it is examined
            return True

    def _differs(self) -> bool:
        return (
            not self._is_complete
            or not self._modules.issuperset(self._others())
            or any(_has_other_code(*code) for code in self._codes)
            or any(holder.has_changed() for holder in self._holders)
        )

    def _others(self) -> Iterator[str]:
        return (name for name in list(sys.modules) if top_of(name) not in self._code_only)

    # ------------------------------------------------------------------ examining

    def _take(self, name: str, module: ModuleType | None) -> None:
        names: Any = getattr(module, "__dict__", None)
        if not _is(names, dict) or id(names) in self._seen:
            return
        self._seen[id(names)] = names
        if top_of(name) not in self._code_only:
            self._hold(_data_of, names)
            self._put(names)
            return
        self._codes.append((names, dict(names)))
        classes = [one for one in names.values() if _is(one, type) and one.__module__ == name]
        self._codes += [(vars(one), dict(vars(one))) for one in classes]

    def _hold(self, read: Read, thing: Any) -> Content:
        held = read(thing)
        self._holders.append(_Holder(read, thing, held))
        return held

    def _look_into(self, thing: Any) -> None:
        if id(thing) in self._seen or _is(thing, ModuleType):
            return
        self._seen[id(thing)] = thing
        kind = self._kinds.get(id(type(thing))) or self._learn(type(thing))
        if not (self._is_stateful(thing) if kind.counts is None else kind.counts):
            return
        held = kind.read(thing) if _is(thing, _IMMUTABLE) else self._hold(kind.read, thing)
        if len(held) < _LARGE:
            self._put(held)

    def _put(self, held: Content) -> None:
        seen = self._seen
        self._todo += [
            value for value in held.values() if type(value) not in _PLAIN and id(value) not in seen
        ]

    def _learn(self, kind: type) -> _Kind:
        counts: bool | None = None
        if not issubclass(kind, (type, FunctionType)):
            counts = issubclass(kind, _HELD) or self._is_stateful(kind)
        known = self._kinds[id(kind)] = _Kind(_reader_of(kind), counts)
        return known

    def _is_stateful(self, code: Any) -> bool:
        """Whether code was defined in a package of which more than replaced code counts."""
        module = code.__module__
        return top_of(module if _is(module, str) else "") not in self._code_only


_Local = threading.local
_Cache = functools._lru_cache_wrapper
_WRAPPERS = (_Cache, staticmethod, classmethod, functools.partial, MethodType)


_HELD = (dict, *_CONTAINERS, *_WEAK, *_WRAPPERS, torch.Tensor, ContextVar, _Local)
"""Types that are examined wherever they were defined."""


def _reader_of(kind: type) -> Read:
    """The function that reads the state of objects of this type."""
    return next((read for kinds, read in _READERS if issubclass(kind, kinds)), _of_instance)


def _sized(container: Any) -> Content | None:
    return {"length": len(container)} if len(container) > _LARGE else None


def _of_cache(cache: Any) -> Content:
    """Cached booleans are ignored: they are about the installation, as ``is_available()``."""
    own = vars(cache)
    kept = [one for one in gc.get_referents(cache) if type(one) is dict and one is not own]
    answers = [one for answered in kept for one in answered.values() if type(one) is not bool]
    return {"length": len(answers), "of": cache.__wrapped__}


def _of_function(function: FunctionType) -> Content:
    held: Content = dict(vars(function))
    for number, cell in enumerate(function.__closure__ or ()):
        try:
            held["closure", number] = cell.cell_contents
        except ValueError:  # the cell is empty
            held["closure", number] = None
    for number, value in enumerate(function.__defaults__ or ()):
        held["default", number] = value
    for name, value in (function.__kwdefaults__ or {}).items():
        held["default", name] = value
    return held


def _of_partial(partial: functools.partial[Any]) -> Content:
    return {"of": partial.func, **dict(enumerate(partial.args)), **partial.keywords}


def _of_instance(thing: Any) -> Content:
    """Attributes as they are stored, so that no property runs."""
    held: Content = dict(getattr(thing, "__dict__", None) or {})
    for kind in type(thing).__mro__:
        for name, slot in vars(kind).items():
            if type(slot) is MemberDescriptorType:
                try:
                    held[name] = slot.__get__(thing)
                except AttributeError:
                    continue
    return held


_READERS: tuple[tuple[type | tuple[type, ...], Read], ...] = (
    (type, lambda kind: _data_of(vars(kind))),
    (dict, lambda entries: _sized(entries) or dict(entries)),
    (_CONTAINERS, lambda items: _sized(items) or dict(enumerate(items))),
    (_WEAK, lambda weak: {"length": len(weak)}),
    (FunctionType, _of_function),
    (_Cache, _of_cache),
    (torch.Tensor, lambda tensor: {"version": tensor._version}),
    (ContextVar, lambda variable: {"value": variable.get(None)}),
    ((staticmethod, classmethod, MethodType), lambda wrapper: {"of": wrapper.__func__}),
    (functools.partial, _of_partial),
)
"""The first match is used; objects of any other type are read by :func:`_of_instance`."""


def _has_other_code(now: Content, before: Content) -> bool:
    return any(value is not now.get(name) and _is(value, _CODE) for name, value in before.items())


def _data_of(names: Mapping[str, Any]) -> Content:
    """All names but submodules, whose import shows in ``sys.modules``, and Python's own notes."""
    return {
        name: value
        for name, value in names.items()
        if not _is(value, ModuleType) and name not in _NOTES
    }


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    return type(one) is type(other) and type(one) in _PLAIN and bool(one == other)


def _is(thing: Any, kinds: type | tuple[type, ...]) -> bool:
    """``isinstance`` by type alone: the real one runs a proxy's ``__class__``."""
    return issubclass(type(thing), kinds)


def packages_of_plugins(config: pytest.Config) -> Iterator[str]:
    """Top-level packages of the installed plugins, which keep records about the tests."""
    for _, distribution in config.pluginmanager.list_plugin_distinfo():
        yield from tops_of(distribution._dist)
