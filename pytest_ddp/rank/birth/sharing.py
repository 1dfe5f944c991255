"""Import in the host what ranks may share: installed packages that do not look who imports them.

A package that asks for its rank while it is imported (Lightning does), or that starts a thread
or makes a temporary folder then, has to be imported by each rank; and so have all that import
it. Whether it does shows only when it is imported, and no import can be taken back: so a fork
of the host tries. If all went well it goes on as the host, and its parent stands behind it
until it ends; otherwise it tells what the next try leaves out.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import itertools
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, ModuleType
from typing import Any, NoReturn

from pytest_ddp.rank.birth import threads
from pytest_ddp.rank.birth.ownership import top_of
from pytest_ddp.rank.birth.preload import without_collector
from pytest_ddp.rank.birth.wanted import Import
from pytest_ddp.rank.exits import faults
from pytest_ddp.system import processes

_IS_HOST = "host"
"""What a fork says that goes on as the host."""


def share(wanted: list[Import], asked: frozenset[str], is_own: Callable[[str], bool]) -> None:
    """Import what is wanted and may be shared; return in the process that is the host then.

    Args:
        wanted: imports of installed modules.
        asked: names of the environment variables that tell a process its place.
        is_own: whether a top-level module is the user's own.
    """
    refused: set[str] = set()
    while wanted := [item for item in wanted if top_of(item.module) not in refused]:
        trial = _try_in_fork(wanted, asked, is_own)
        if trial is None:
            return
        if not trial.refused - refused:
            # It died of an import, which the rank that needs it will tell; or it cannot be had
            # apart from what it leaves out.
            return
        refused |= trial.refused
        # In the place of what is left out come its own imports, most of what takes time.
        known = {item.module for item in wanted}
        wanted += [Import(name) for name in trial.clean if name not in known]


class _Trial:
    """What a fork saw that could not go on as the host."""

    def __init__(self, refused: list[str], clean: list[str]) -> None:
        self.refused = set(refused)
        """Top-level packages that ranks have to import themselves."""
        self.clean = clean
        """Modules that came with them and may be shared."""


def _try_in_fork(
    wanted: list[Import], asked: frozenset[str], is_own: Callable[[str], bool]
) -> _Trial | None:
    parent = os.getpid()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        processes.die_with_parent(parent)
        before = frozenset(sys.modules)
        refused = _import_watched(wanted, asked)
        if not refused:
            with open(writing, "w") as stream:
                stream.write(_IS_HOST)
            return None
        came = [name for name in sys.modules if name not in before]
        clean = [n for n in came if top_of(n) not in refused and not is_own(top_of(n))]
        with open(writing, "w") as stream:
            json.dump([sorted(refused), clean], stream)
        faults.leave(0)
    os.close(writing)
    with open(reading) as stream:
        told = stream.read()
    if told == _IS_HOST:
        _stand_behind(child)
    os.waitpid(child, 0)
    return _Trial(*json.loads(told or "[[], []]"))


def _stand_behind(child: int) -> NoReturn:
    """End as the child does: the controller knows this process, and waits for it."""
    processes.outlive_parent()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL can be given no other action
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    faults.leave(code)


def _import_watched(wanted: list[Import], asked: frozenset[str]) -> set[str]:
    """Import, and return the packages that must not have been."""
    watch = _Watch(asked)
    with watch.installed(), without_collector():
        for item in wanted:
            # Whatever is wrong with it, the rank that needs it will say so.
            with contextlib.suppress(BaseException):
                __import__(item.module, fromlist=item.names or None)
    return watch.with_importers()


class _Watch:
    """Sees which package asks for its place or starts a thread, and who imports whom."""

    def __init__(self, asked: frozenset[str]) -> None:
        self._asked = asked | {os.fsencode(name) for name in asked}
        self._loaded = {top_of(name) for name in sys.modules}
        """What was there before can be left out no more."""
        self._found: set[str] = set()
        self._importers: dict[str, set[str]] = {}
        """Top-level packages that imported one."""
        self._under_way: list[str] = []
        """Top-level names of the imports that have not returned, the innermost last."""
        self._threads = len(threads.hindering())

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        environ: Any = type(os.environ)
        lookup, walk = environ.__getitem__, environ.__iter__
        by_statement, by_call = builtins.__import__, importlib.import_module

        def getitem(mapping: Any, name: Any) -> Any:
            if name in self._asked:
                self._blame(sys._getframe(1))
            return lookup(mapping, name)

        def iter_(mapping: Any) -> Any:
            # Who takes all may look for its rank later.
            self._blame(sys._getframe(1))
            return walk(mapping)

        def import_(
            name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
        ) -> ModuleType:
            absolute = name if level == 0 else (globals or {}).get("__name__") or ""
            with self._importing(absolute, globals):
                return by_statement(name, globals, locals, fromlist, level)

        def import_module(name: str, package: str | None = None) -> ModuleType:
            absolute = package or "" if name.startswith(".") else name
            with self._importing(absolute, sys._getframe(1).f_globals):
                return by_call(name, package)

        def make_folder(*args: Any, **kwargs: Any) -> Any:
            # The first rank that ends would remove what all share.
            self._blame(sys._getframe(1))
            return mkdtemp(*args, **kwargs)

        mkdtemp, vars(tempfile)["mkdtemp"] = tempfile.mkdtemp, make_folder
        environ.__getitem__, environ.__iter__ = getitem, iter_
        builtins.__import__, importlib.import_module = import_, import_module
        try:
            yield
        finally:
            vars(tempfile)["mkdtemp"] = mkdtemp
            environ.__getitem__, environ.__iter__ = lookup, walk
            builtins.__import__, importlib.import_module = by_statement, by_call

    def with_importers(self) -> set[str]:
        """Those seen, and all that imported one of them."""
        refused, new = set(), set(self._found)
        while new:
            refused |= new
            importers = (self._importers.get(top, set()) for top in new)
            new = set().union(*importers) - refused - self._loaded
        return refused

    @contextlib.contextmanager
    def _importing(self, name: str, importer: Any) -> Iterator[None]:
        top, by = top_of(name), top_of((importer or {}).get("__name__") or "")
        if by and by != top:
            self._importers.setdefault(top, set()).add(by)
        self._under_way.append(top)
        try:
            yield
        finally:
            # The innermost import of those under way returns first.
            if (number := len(threads.hindering())) > self._threads:
                self._threads = number
                self._refuse(reversed(self._under_way))
            self._under_way.pop()

    def _blame(self, frame: FrameType | None) -> None:
        """Find the module whose import this is."""
        tops = []
        while frame is not None:
            if frame.f_code.co_name == "<module>":
                tops.append(top_of(frame.f_globals.get("__name__") or ""))
            frame = frame.f_back
        self._refuse(tops[:1])

    def _refuse(self, tops: Iterable[str]) -> None:
        """The first that can be left out: the library and what was there before cannot."""
        able = (top for top in tops if top not in self._loaded | sys.stdlib_module_names)
        self._found.update(itertools.islice(able, 1))
