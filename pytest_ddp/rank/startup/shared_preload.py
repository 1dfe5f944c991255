"""Import, before the fork, what processes may share of the collected files' imports."""

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
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

from pytest_ddp.protocol.host_messages import Collected
from pytest_ddp.rank.exits import crash_stacks
from pytest_ddp.rank.startup import preload, threads
from pytest_ddp.rank.startup.import_scan import ImportScan, ScannedImport
from pytest_ddp.rank.startup.ownership import CodeOwnership, top_of
from pytest_ddp.rank.startup.preload import without_collector
from pytest_ddp.system import processes

# ------------------------------------------------------------------
# Import in the host what ranks may share: installed packages without a state of their rank.
#
# Some packages read the rank while they are imported (Lightning does), start a thread or make a
# temporary folder. Each rank has to import these itself, and all packages that import them. Whether
# a package does so shows only at its import, and no import can be undone: so a fork of the host
# tries it. If all went well the fork goes on as the host, and its parent waits until it ends;
# otherwise the fork reports what to leave out at the next try, and exits.

_IS_HOST = "host"
"""What a fork writes to its parent if it goes on as the host."""


def import_in_host(
    wanted: list[ScannedImport], place: frozenset[str], is_own: Callable[[str], bool]
) -> None:
    """Do the imports that may be shared; returns in the process that is the host from then on.

    Args:
        wanted: imports of installed modules.
        place: names of the environment variables with a process's rank and the like.
        is_own: whether a top-level module is the user's own.
    """
    refused: set[str] = set()
    # Ends, as each round refuses at least one more package.
    while wanted := [item for item in wanted if top_of(item.module) not in refused]:
        trial = _try_in_fork(wanted, place, is_own)
        if trial is None:
            return
        if not trial.refused - refused:
            # The fork died in an import, and the rank that needs the import will report that; or
            # a refused package cannot be left out, as another one imports it.
            return
        refused |= trial.refused
        # Instead of a refused package, do its own imports: they take most of its time.
        known = {item.module for item in wanted}
        wanted += [ScannedImport(name) for name in trial.clean if name not in known]


class _Trial:
    """What a fork found that could not go on as the host."""

    def __init__(self, refused: list[str], clean: list[str]) -> None:
        self.refused = set(refused)
        """Top-level packages that ranks have to import themselves."""
        self.clean = clean
        """Modules that were imported with them and may be shared."""


def _try_in_fork(
    wanted: list[ScannedImport], place: frozenset[str], is_own: Callable[[str], bool]
) -> _Trial | None:
    parent = os.getpid()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        processes.die_with_parent(parent)
        before = frozenset(sys.modules)
        refused = _import_watched(wanted, place)
        if not refused:
            with open(writing, "w") as stream:
                stream.write(_IS_HOST)
            return None
        came = [name for name in sys.modules if name not in before]
        clean = [n for n in came if top_of(n) not in refused and not is_own(top_of(n))]
        with open(writing, "w") as stream:
            json.dump([sorted(refused), clean], stream)
        crash_stacks.exit_now(0)
    os.close(writing)
    with open(reading) as stream:
        answer = stream.read()
    if answer == _IS_HOST:
        _wait_as_parent(child)
    os.waitpid(child, 0)
    return _Trial(*json.loads(answer or "[[], []]"))


def _wait_as_parent(child: int) -> NoReturn:
    """Exit as the child does: the controller knows this process, and waits for it."""
    processes.outlive_parent()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL's action cannot be set
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    crash_stacks.exit_now(code)


def _import_watched(wanted: list[ScannedImport], place: frozenset[str]) -> set[str]:
    """Do the imports, and return the packages that must not be imported before the fork."""
    watch = _Watch(place)
    with watch.installed(), without_collector():
        for item in wanted:
            # An import that fails here fails again in the rank that needs it, with a report.
            with contextlib.suppress(BaseException):
                __import__(item.module, fromlist=item.names or None)
    return watch.with_importers()


class _Watch:
    """Detects packages that read their rank, start threads or make folders, and their importers."""

    def __init__(self, place: frozenset[str]) -> None:
        self._place = place | {os.fsencode(name) for name in place}
        self._loaded = {top_of(name) for name in sys.modules}
        """Packages that were imported before, and can no longer be left out."""
        self._found: set[str] = set()
        self._importers: dict[str, set[str]] = {}
        """The packages that import each top-level package."""
        self._under_way: list[str] = []
        """Top-level names of the running imports, the innermost last."""
        self._threads = len(threads.hindering())

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        environ: Any = type(os.environ)
        lookup, walk = environ.__getitem__, environ.__iter__
        by_statement, by_call = builtins.__import__, importlib.import_module

        def getitem(mapping: Any, name: Any) -> Any:
            if name in self._place:
                self._blame(sys._getframe(1))
            return lookup(mapping, name)

        def iter_(mapping: Any) -> Any:
            # A copy of all variables may be searched for the rank later.
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
            # The first rank to exit would remove a folder that all share.
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
        """The packages that were found, and all that import one of them."""
        refused, new = set(), set(self._found)
        # Ends, as ``refused`` grows in each round.
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
            # A new thread belongs to this import: inner ones have returned, and counted theirs.
            if (number := len(threads.hindering())) > self._threads:
                self._threads = number
                self._refuse(reversed(self._under_way))
            self._under_way.pop()

    def _blame(self, frame: FrameType | None) -> None:
        """Refuse the package whose module is being imported by this frame."""
        tops = []
        while frame is not None:
            if frame.f_code.co_name == "<module>":
                tops.append(top_of(frame.f_globals.get("__name__") or ""))
            frame = frame.f_back
        self._refuse(tops[:1])

    def _refuse(self, tops: Iterable[str]) -> None:
        """Refuse the first package that can be left out: not the library, nor what was loaded."""
        able = (top for top in tops if top not in self._loaded | sys.stdlib_module_names)
        self._found.update(itertools.islice(able, 1))


def import_shared(collected: Collected) -> None:
    """Do the imports; the process that returns may be a fork of the calling one."""
    ours, sys.path[:] = list(sys.path), collected.path
    is_own = CodeOwnership().is_own
    wanted = ImportScan(is_own)
    wanted.by(map(Path, (*collected.conftests, *collected.files)))
    imports = wanted.came(collected.came)
    sys.path[:] = ours
    preload.what_wraps_models(wanted.files)
    import_in_host(preload.of_torch(imports), frozenset(collected.places), is_own)
