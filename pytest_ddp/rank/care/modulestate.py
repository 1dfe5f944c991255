"""Whether modules keep more, or something else, than they did: what a library has for its process.

Libraries keep state in a module's globals, in class attributes, in a singleton's instance, in
``functools.cache``, in closures and default arguments. None of it can be put back by somebody
else, so that all that is asked here is whether any of it has changed.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, NamedTuple

import pytest
import torch

from pytest_ddp.rank.birth.ownership import top_of, tops_of
from pytest_ddp.system.own import gc, threading

_LOOKED_AFTER = frozenset(
    {"torch", "numpy", "pytest_ddp", "ddp_conformance", "pytest", "_pytest", "pluggy"}
)
"""Packages of which only replaced code counts: of what torch keeps, the rank restores by name what
a test can change (:mod:`surroundings`), and the rest is caches."""
_MOST = 500_000
"""Objects that are looked at; what keeps more is not known, and counts as changed."""
_LARGE = 10_000
"""Entries from which on a container counts by its length: data, not state."""
_PLAIN = frozenset({int, float, complex, str, bytes, bool, type(None)})
"""What is the same when it is equal."""
_NOTES = frozenset({"__warningregistry__", "__annotations__"})
_CODE = (FunctionType, type, staticmethod, classmethod, property)
_CONTAINERS = (list, set, frozenset, deque, tuple)
_WEAK = (weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary)

Content = dict[Any, Any]


class _Holder(NamedTuple):
    """Something that keeps state: how it is read, and what it held."""

    read: Callable[[], Content]
    held: Content

    def has_changed(self) -> bool:
        now = self.read()
        return len(now) != len(self.held) or any(
            name not in now or not _same(value, now[name]) for name, value in self.held.items()
        )


class ModuleState:
    """What all modules of a process hold at one moment."""

    def __init__(self, looked_after: Iterable[str] = ()) -> None:
        """
        Args:
            looked_after: more packages of which only replaced code counts, such as plugins that
                keep books of the tests.
        """
        self._looked_after = _LOOKED_AFTER | sys.stdlib_module_names | frozenset(looked_after)
        self._modules = frozenset(self._others())
        self._holders: list[_Holder] = []
        self._codes: list[tuple[Any, Content]] = []
        """Names of a module or class that is looked after, and what they meant."""
        self._seen: dict[int, Any] = {}
        """Kept alive, so that no other object gets the id of one that was seen."""
        self._todo: list[Any] = []
        self._knows_all = False
        for name, module in list(sys.modules.items()):
            self._take(name, module)
        with contextlib.suppress(Exception):  # of a user's object, as below
            while self._todo and len(self._seen) < _MOST:
                self._look_into(self._todo.pop())
            self._knows_all = not self._todo
        self._todo.clear()

    def has_changed(self) -> bool:
        """Whether anything is other than it was, or cannot be known.

        A module that was imported since then cannot: nobody has seen it as it was at first.
        """
        try:
            return self._differs()
        except Exception:  # of a user's object that is looked into, whatever it raises
            return True

    def _differs(self) -> bool:
        return (
            not self._knows_all
            or not self._modules.issuperset(self._others())
            or any(_has_other_code(*code) for code in self._codes)
            or any(holder.has_changed() for holder in self._holders)
        )

    def _others(self) -> Iterator[str]:
        return (name for name in list(sys.modules) if top_of(name) not in self._looked_after)

    # ------------------------------------------------------------------ looking

    def _take(self, name: str, module: ModuleType | None) -> None:
        names: Any = getattr(module, "__dict__", None)
        if not _is(names, dict) or id(names) in self._seen:
            return
        self._seen[id(names)] = names
        if top_of(name) not in self._looked_after:
            self._hold(lambda: _data_of(names))
            self._put(names)
            return
        self._codes.append((names, dict(names)))
        classes = [one for one in names.values() if _is(one, type) and one.__module__ == name]
        self._codes += [(vars(one), dict(vars(one))) for one in classes]

    def _hold(self, read: Callable[[], Content]) -> None:
        self._holders.append(_Holder(read, read()))

    def _look_into(self, thing: Any) -> None:
        if _is(thing, ModuleType) or id(thing) in self._seen:
            return
        self._seen[id(thing)] = thing
        read = _reader_of(thing)
        if read is None or not self._counts(thing):
            return
        self._hold(read)
        if len(held := self._holders[-1].held) < _LARGE:
            self._put(held)

    def _put(self, held: Content) -> None:
        self._todo += [value for value in held.values() if type(value) not in _PLAIN]

    def _counts(self, thing: Any) -> bool:
        """Containers, and what code that is not looked after has made."""
        if _is(thing, (dict, *_CONTAINERS, ContextVar, _Local)):
            return True
        if _is(thing, (*_WEAK, torch.Tensor, *_WRAPPERS)):
            return True
        of = thing if _is(thing, (type, FunctionType)) else type(thing)
        module = of.__module__
        return top_of(module if _is(module, str) else "") not in self._looked_after


_Local = threading.local
_Cache = functools._lru_cache_wrapper
_WRAPPERS = (_Cache, staticmethod, classmethod, functools.partial, MethodType)


def _reader_of(thing: Any) -> Callable[[], Content] | None:
    """How to read what a thing holds; None for what holds nothing that is known of."""
    if _is(thing, type):
        return lambda: _data_of(dict(vars(thing)))
    if _is(thing, dict):
        return lambda: _sized(thing) or dict(thing)
    if _is(thing, _CONTAINERS):
        return lambda: _sized(thing) or dict(enumerate(thing))
    if _is(thing, _WEAK):
        return lambda: {"length": len(thing)}
    if _is(thing, FunctionType):
        return lambda: _of_function(thing)
    if _is(thing, _Cache):
        return lambda: _of_cache(thing)
    if _is(thing, torch.Tensor):
        return lambda: {"version": thing._version}
    if _is(thing, ContextVar):
        return lambda: {"value": thing.get(None)}
    if _is(thing, (staticmethod, classmethod, MethodType)):
        return lambda: {"of": thing.__func__}
    if _is(thing, functools.partial):
        return lambda: {"of": thing.func, **dict(enumerate(thing.args)), **thing.keywords}
    return lambda: _of_instance(thing)


def _sized(container: Any) -> Content | None:
    return {"length": len(container)} if len(container) > _LARGE else None


def _of_cache(cache: Any) -> Content:
    """Answers of yes and no are about the installation: ``is_available()``."""
    own = vars(cache)
    kept = [one for one in gc.get_referents(cache) if type(one) is dict and one is not own]
    answers = [one for answered in kept for one in answered.values() if type(one) is not bool]
    return {"length": len(answers), "of": cache.__wrapped__}


def _of_function(function: FunctionType) -> Content:
    held: Content = dict(vars(function))
    for number, cell in enumerate(function.__closure__ or ()):
        try:
            held["closure", number] = cell.cell_contents
        except ValueError:  # it has nothing yet
            held["closure", number] = None
    for number, value in enumerate(function.__defaults__ or ()):
        held["default", number] = value
    for name, value in (function.__kwdefaults__ or {}).items():
        held["default", name] = value
    return held


def _of_instance(thing: Any) -> Content:
    """Attributes as they are kept, so that no property runs."""
    held: Content = dict(getattr(thing, "__dict__", None) or {})
    for kind in type(thing).__mro__:
        for name, slot in vars(kind).items():
            if type(slot) is MemberDescriptorType:
                try:
                    held[name] = slot.__get__(thing)
                except AttributeError:
                    continue
    return held


def _has_other_code(now: Content, before: Content) -> bool:
    return any(value is not now.get(name) and _is(value, _CODE) for name, value in before.items())


def _data_of(names: Content) -> Content:
    """Without submodules, whose import is seen in ``sys.modules``, and Python's own notes."""
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
    """As ``isinstance``, which asks proxies what they are, and so runs code of theirs."""
    return issubclass(type(thing), kinds)


def packages_of_plugins(config: pytest.Config) -> Iterator[str]:
    """Top-level packages of the installed plugins, which keep books of the tests."""
    for _, distribution in config.pluginmanager.list_plugin_distinfo():
        yield from tops_of(distribution._dist)
