"""Collection in a rank: a test file is collected when its first test is due."""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import reprlib
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import _pytest.main
import _pytest.python
import pytest

from pytest_ddp.protocol.messages import Parameter
from pytest_ddp.system.stdlib import os, traceback

# ------------------------------------------------------------------
# The import system as the last collection left it.
#
# Plain pytest imports every test file before the first test runs; a rank that is kept imports a
# file when its first test is due. What earlier tests did to ``sys.path``, to finders or to
# ``sys.modules``, and did not undo, must not affect that import: with an empty path pytest cannot
# import, and a file that found a fake module would run other tests than its own.

_MISSING: Any = object()


class ImportState:
    """Swaps the import system's state: the last collection's for imports, the tests' afterwards."""

    def __init__(self) -> None:
        self._lists: list[list[Any]] = []
        self._modules: dict[str, ModuleType] = {}

    @contextlib.contextmanager
    def as_collected(self) -> Iterator[None]:
        """Import in the block as if no test had run since the last such block."""
        theirs, displaced = _lists(), self._put_modules_back()
        for live, before in zip(_live(), self._lists, strict=False):
            live[:] = before
        before = _lists()
        try:
            yield
        finally:
            self._lists, self._modules = _lists(), dict(sys.modules)
            for live, old, tests in zip(_live(), before, theirs, strict=True):
                live[:] = _with_new(tests, old, live)
            for name, module in displaced.items():
                if module is _MISSING:
                    sys.modules.pop(name, None)
                else:
                    sys.modules[name] = module

    def _put_modules_back(self) -> dict[str, ModuleType]:
        """Restore collected modules; returns what they replace, ``_MISSING`` for nothing."""
        if not self._modules:
            return {}
        now = dict(sys.modules)
        changed = [name for name, module in self._modules.items() if now.get(name) is not module]
        fakes = [name for name in now.keys() - self._modules.keys() if _is_fake(name, now)]
        sys.modules.update((name, self._modules[name]) for name in changed)
        for name in fakes:
            del sys.modules[name]
        return {name: now.get(name, _MISSING) for name in (*changed, *fakes)}


def _is_fake(name: str, modules: dict[str, ModuleType]) -> bool:
    """Whether a test has made the module's top-level module by hand.

    Below a real package, libraries make modules by hand as well.
    """
    top = modules.get(name.partition(".")[0])
    return getattr(top, "__spec__", None) is None


def _live() -> tuple[list[Any], ...]:
    return sys.path, sys.meta_path, sys.path_hooks


def _lists() -> list[list[Any]]:
    return [list(live) for live in _live()]


def _with_new(tests: list[Any], before: list[Any], after: list[Any]) -> list[Any]:
    """The tests' entries and those that collection added, on the side where it added them."""
    new = [entry for entry in after if entry not in before and entry not in tests]
    return [*new, *tests] if after[: len(new)] == new else [*tests, *new]


_LISTING: tuple[Any, ...] = (_pytest.main, _pytest.python)
"""Modules of pytest with collectors that list folders."""
_SHORT = reprlib.Repr()
"""Writes values of parameters, which may be whole tables of data; sets are sorted."""
_SHORT.maxother = _SHORT.maxstring = _SHORT.maxlong = 100
_NEAREST = 3
"""How many similar tests are named in the message about a missing one."""


class Collection:
    """A pytest plugin that keeps what was collected, file by file.

    All files have the same nodes for their folders, so that a package's fixture is set up once.
    """

    def __init__(self, *, is_own_interpreters: bool = False) -> None:
        """
        Args:
            is_own_interpreters: whether each rank has an interpreter of its own, with its own hash
                seed.
        """
        self.is_own_interpreters = is_own_interpreters
        self._items: dict[str, pytest.Item] = {}
        self._folders: dict[Path, pytest.Collector] = {}
        self._errors: dict[str, list[str]] = {}
        """What went wrong, by file."""
        self._errors_now: list[str] = []
        self._imports = ImportState()
        self._way: frozenset[Path] = frozenset()
        """The files that are being collected, and all their parent folders."""

    def collect(self, session: pytest.Session, files: Iterable[str]) -> None:
        """Collect files; each is collected once in a rank's life."""
        files = list(files)
        self._errors_now = []
        self._errors |= dict.fromkeys(files, self._errors_now)
        paths = [Path(file) for file in files]
        self._way = frozenset(chain(paths, *(path.parents for path in paths)))
        session.config.args = files
        try:
            with self._imports.as_collected(), _listed(self._way):
                session.config.hook.pytest_collection(session=session)
        except KeyboardInterrupt:
            raise
        except BaseException:
            self._errors_now.append(traceback.format_exc())

    def has(self, file: str) -> bool:
        """Whether the file was collected, with errors or without."""
        return file in self._errors

    def item(self, nodeid: str) -> pytest.Item | None:
        """A collected test, even if a plugin has deselected it."""
        return self._items.get(nodeid)

    def chain_to(self, nodeid: str, file: str) -> Any:
        """A test, or its deepest collected folder if the test is not collected yet.

        pytest needs of its next item only the chain of its collectors.
        """
        if (item := self._items.get(nodeid)) is not None:
            return item
        known = (self._folders.get(folder) for folder in Path(file).parents)
        return next((folder for folder in known if folder is not None), None)

    def missing(self, nodeid: str, file: str) -> str:
        """Why this test does not exist here."""
        if errors := self._errors.get(file):
            return "its file could not be collected in the rank:\n" + "\n".join(errors)
        path = nodeid.partition("::")[0]
        in_file = [known for known in self._items if known.partition("::")[0] == path]
        function = nodeid.partition("[")[0]
        near = [known for known in in_file if known.partition("[")[0] == function]
        similar = f"Of the same function it has {', '.join(near[:_NEAREST])}.\n" if near else ""
        return (
            f"the rank collected {len(in_file)} tests from {path}, but not this one\n{similar}"
            "Collection differs between two processes. Make parameters and ids deterministic: no\n"
            "random or uuid values, no sets, no times in parametrize (or seed them), and over\n"
            "several machines nothing that differs between them, such as host names and devices."
        )

    def parameters(self, file: str) -> Iterator[Parameter]:
        """The parameters of all tests of a file."""
        found: dict[tuple[str, str], dict[str, str]] = {}
        for nodeid, item in self._items.items():
            if str(item.path) == file:
                values = getattr(getattr(item, "callspec", None), "params", {})
                for name, value in values.items():
                    of = nodeid.partition("[")[0], name
                    found.setdefault(of, {})[nodeid] = _SHORT.repr(value)
        for (function, name), texts in found.items():
            yield Parameter(function, name, texts)

    # ------------------------------------------------------------------ pytest's hooks

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Any:
        before = list(items)
        yield
        self._items |= {item.nodeid: item for item in [*before, *items]}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._errors_now.append(report.longreprtext)
        elif report.skipped and isinstance(report.longrepr, tuple):
            path, line, reason = report.longrepr
            self._errors_now.append(f"{path}:{line}: {reason}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        # For folders that are not listed by :func:`_listed`.
        return None if collection_path in self._way else True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collect_directory(self, path: Path) -> Iterator[None]:
        made = yield
        return made if made is None else self._folders.setdefault(path, made)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> Iterator[None]:
        # pytest 9.1 and later drops conftest files here whose folders were not collected; these
        # may be, with the next file.
        fixtures: Any = session._fixturemanager
        waiting: dict[Path, object] = getattr(fixtures, "_pending_conftests", {})
        left = dict(waiting)
        result = yield
        waiting.update(left)
        return result


@contextlib.contextmanager
def _listed(way: Iterable[Path]) -> Iterator[None]:
    """Make pytest find nothing in folders but the files to collect and their parent folders.

    It would otherwise run hooks for each entry of all folders from the rootdir down. An isolated
    rank did so for each of its tests, which was half of the time of such a test.
    """
    listing = functools.partial(_entries, frozenset(map(str, way)))
    # Other releases of pytest list folders with other functions.
    found = [(module, module.scandir) for module in _LISTING if hasattr(module, "scandir")]
    for module, _ in found:
        module.scandir = listing
    try:
        yield
    finally:
        for module, original in found:
            module.scandir = original


def _entries(
    way: Container[str],
    folder: Path,
    sort_key: Callable[[os.DirEntry[str]], Any] = lambda entry: entry.name,
) -> list[os.DirEntry[str]]:
    """A stand-in for pytest's ``scandir``: a folder's entries, none for a missing folder."""
    try:
        with os.scandir(folder) as entries:
            return sorted((entry for entry in entries if entry.path in way), key=sort_key)
    except FileNotFoundError:
        return []


# ------------------------------------------------------------------
# Modules that are found only because pytest has collected other files before.
#
# With the import modes prepend and append, each test file adds its folder to ``sys.path``, and the
# next file imports from there. A rank collects few of these files. The folders of the others are
# searched last here, and are not on ``sys.path``, where pytest would find them and not add them.


class LateImportFinder(importlib.abc.MetaPathFinder):
    """Searches the controller's ``sys.path`` after all other finders."""

    def __init__(self, path: Iterable[str]) -> None:
        self._path = [folder for folder in path if folder not in sys.path]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a top-level module in one of these folders."""
        return PathFinder.find_spec(fullname, self._path, target) if path is None else None
