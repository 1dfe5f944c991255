"""Collect in a rank: the file of the test at hand, when a test of it first comes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Container, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import _pytest.main
import _pytest.python
import pytest

from pytest_ddp.rank.birth.imports import Imports
from pytest_ddp.system.own import os, traceback

_LISTING: tuple[Any, ...] = (_pytest.main, _pytest.python)
"""Modules of pytest whose collectors list folders."""
_NEAREST = 3
"""How many tests are named in the place of one that is not there."""


class Collection:
    """A pytest plugin that remembers what was collected, file by file.

    Folders are the same nodes for all files, so that a fixture of a package is set up once.
    """

    def __init__(self) -> None:
        self._items: dict[str, pytest.Item] = {}
        self._folders: dict[Path, pytest.Collector] = {}
        self._errors: dict[str, list[str]] = {}
        """What went wrong with each file."""
        self._errors_now: list[str] = []
        self._imports = Imports()
        self._way: frozenset[Path] = frozenset()
        """The files that are collected now, and all folders on the way to them."""

    def collect(self, session: pytest.Session, files: Iterable[str]) -> None:
        """Collect files, each of them once in a rank's life."""
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
        """Whether the file has been collected, well or not."""
        return file in self._errors

    def item(self, nodeid: str) -> pytest.Item | None:
        """A collected test, also one that a plugin has deselected."""
        return self._items.get(nodeid)

    def chain_to(self, nodeid: str, file: str) -> Any:
        """A test, or where it is not collected yet, the deepest collector on the way to it.

        pytest asks its next item for the chain of its collectors only.
        """
        if (item := self._items.get(nodeid)) is not None:
            return item
        known = (self._folders.get(folder) for folder in Path(file).parents)
        return next((folder for folder in known if folder is not None), None)

    def missing(self, nodeid: str, file: str) -> str:
        """Why there is no such test here."""
        if errors := self._errors.get(file):
            return "its file could not be collected in the rank:\n" + "\n".join(errors)
        path = nodeid.partition("::")[0]
        mates = [known for known in self._items if known.partition("::")[0] == path]
        function = nodeid.partition("[")[0]
        near = [known for known in mates if known.partition("[")[0] == function]
        told = f"Of the same function it has {', '.join(near[:_NEAREST])}.\n" if near else ""
        return (
            f"the rank collected {len(mates)} tests from {path}, but not this one\n{told}"
            "Collection differs between two processes. Make parameters and ids deterministic: no\n"
            "random or uuid values, no sets, no times in parametrize (or seed them), and over\n"
            "several machines nothing that differs between them, such as host names and devices."
        )

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
        # Where folders are not listed by :func:`_listed`.
        return None if collection_path in self._way else True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collect_directory(self, path: Path) -> Iterator[None]:
        made = yield
        return made if made is None else self._folders.setdefault(path, made)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> Iterator[None]:
        # pytest 9.1 and later forgets here those conftest files whose folders did not come up;
        # they may, with the next file.
        fixtures: Any = session._fixturemanager
        waiting: dict[Path, object] = getattr(fixtures, "_pending_conftests", {})
        left = dict(waiting)
        result = yield
        waiting.update(left)
        return result


@contextlib.contextmanager
def _listed(way: Iterable[Path]) -> Iterator[None]:
    """Have pytest find nothing in folders but what is on the way to the files it is asked for.

    It would ask of each other entry, in all folders from the root of the project on, whether it
    is to be collected. Where tests are isolated each rank did so for each of its tests: that was
    half of what such a test cost.
    """
    listing = functools.partial(_entries, frozenset(map(str, way)))
    # Other releases of pytest list folders in another way.
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
    """In the place of pytest's ``scandir``: entries of a folder, none if it is not there."""
    try:
        with os.scandir(folder) as entries:
            return sorted((entry for entry in entries if entry.path in way), key=sort_key)
    except FileNotFoundError:
        return []
