"""The files that the Python code of this process writes, and what can be read in between.

An audit hook sees what Python opens, renames, links and touches, wherever the path came from;
``torch.save``, which opens files in C++, is wrapped. What other libraries do in C++ is not seen.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias
from unittest import mock
from urllib.parse import urlsplit

import torch

from ddp_conformance.framework.places import call_site
from pytest_ddp.system.file_events import files_of, full_path, opens_to_write

_listening: list[WriteLog] = []


def do_nothing(*_: object) -> None:
    """Go on at once."""


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was written, and is still there."""

    path: str
    """The path below the folder."""
    lock: bool
    """Whether the file was locked, and is empty."""
    claim: str = ""
    """What only one process can have, if this one tried to have it and may have failed."""
    own: bool = False
    """Whether this process has written what it claims."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """What is about to be done to files or folders."""

    paths: tuple[str, ...]
    """Paths below the folder; of a rename both."""
    takes: bool = False
    """Whether only one rank can make the change, of several that have looked whether it is to be
    made."""
    names: bool = False
    """A file that was written gets the name by which others know it."""


Before: TypeAlias = Callable[[FileChange], None]


class WriteLog:
    """The paths below a folder that were opened for writing, touched, linked or renamed to.

    ``before`` is called each time, before it happens, and before something is removed or cut, or
    a folder is made.
    """

    def __init__(self, folder: Path, before: Before = do_nothing) -> None:
        self.paths: dict[str, str] = {}  # and their claims
        self._locked: set[str] = set()
        self._folder = folder
        self._before = before

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Keep the paths that an audit event opens for writing or changes."""
        given = [path for path, _ in files_of(event, arguments)]
        if event == "open" and opens_to_write(*arguments[1:]):
            self.keep(given[0], _NEW if arguments[2] & os.O_EXCL else "")
        elif event == "os.rename":
            self._rename(*map(self._below, given))
        elif event in _WRITES:
            self.keep(given[0], _CLAIMS.get(event, ""), event in _NAMES)
        elif event in _LOCKS:
            self._locked.update(self._known_as(given[0]))
        elif event in _TAKES and (path := self._below(given[0])) is not None:
            self._before(FileChange((path,), takes=True))

    def keep(self, path: object, claim: str = "", names: bool = False) -> None:
        """Note a path, if it lies in the folder, and is not sure to be refused."""
        below = self._below(path)
        if below is not None:
            self._before(FileChange((below,), claim == _NEW, names))
            if claim != _NEW or not os.path.lexists(self._folder / below):
                self._note(below, claim)

    def _rename(self, source: str | None, target: str | None) -> None:
        """Note a rename: one file can be moved by one process only."""
        paths = tuple(path for path in (source, target) if path is not None)
        if paths:
            self._before(FileChange(paths, source is not None, target is not None))
        if target is not None:
            self._note(target, source or "")

    def _note(self, path: str, claim: str) -> None:
        self.paths[path] = claim and self.paths.get(path, claim)

    def written(self) -> Iterator[Written]:
        """Yield the written files that are still there; one that is gone was a step on the way to
        another."""
        for path in self.paths:
            with suppress(FileNotFoundError):
                state = os.lstat(self._folder / path)
                if not stat.S_ISDIR(state.st_mode):
                    lock = path in self._locked and state.st_size == 0
                    claim = self.paths[path]
                    yield Written(path, lock, claim, claim in self.paths)

    def _below(self, path: object) -> str | None:
        if isinstance(path, int):
            return None  # a file descriptor: its opening was seen
        whole = Path(full_path(path) or "/")
        return str(whole.relative_to(self._folder)) if whole.is_relative_to(self._folder) else None

    def _known_as(self, descriptor: int) -> Iterator[str]:
        """Looked up at once, because the number of a file that is gone is given to the next one."""
        for path in self.paths:
            with suppress(OSError):
                if os.path.samestat(os.fstat(descriptor), os.stat(self._folder / path)):
                    yield path

    def connect(self, database: Any, *arguments: Any, **options: Any) -> sqlite3.Connection:
        """Connect as ``sqlite3.connect`` does, noting the changes of rows.

        To connect is not to write: readers do it without saying that they only read.
        """
        connection: sqlite3.Connection = _connect(database, *arguments, **options)

        def authorize(action: int, table: str | None, *_: object) -> int:
            # CREATE TABLE IF NOT EXISTS names sqlite_master, also if it creates nothing.
            if action in _CHANGES and not str(table).startswith("sqlite_"):
                self.keep(_file_of(database))
            return sqlite3.SQLITE_OK

        connection.set_authorizer(authorize)
        return connection

    def open_in_torch(self, name: object, *arguments: Any, **options: Any) -> Any:
        """Stand in for what ``torch.save`` opens a path with, or a stream that it was given."""
        self.keep(name)
        return _open_in_torch(name, *arguments, **options)


_WRITES = frozenset({"os.link", "os.symlink", "os.utime"})
"""Audit events of writing."""

_NEW = "/"
"""The claim of a file that must not be there yet: of all who make it at once, one succeeds."""

_CLAIMS = {"os.link": _NEW, "os.symlink": _NEW}

_NAMES = frozenset({"os.link", "os.symlink"})
"""Events that give a file that was written the name by which others know it."""

_TAKES = frozenset({"os.mkdir", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"})
"""Events of what only one rank can do, of several that have looked whether it is to be done."""

_LOCKS = frozenset({"fcntl.flock", "fcntl.lockf"})

_CHANGES = frozenset({sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE})
_connect = sqlite3.connect
_open_in_torch: Callable[..., Any] = torch._C.PyTorchFileWriter


def _file_of(database: str | bytes | os.PathLike[str]) -> str:
    name = os.fsdecode(database)
    return urlsplit(name).path if name.startswith("file:") else name


@contextmanager
def writes_below(folder: Path, before: Before = do_nothing) -> Iterator[WriteLog]:
    """Note what this process writes below ``folder`` in the block; see :class:`WriteLog`."""
    _install()
    log = WriteLog(folder.absolute(), before)
    _listening.append(log)
    try:
        # The audit events of sqlite3 come before a connection can be watched, or written to.
        with (
            mock.patch.object(sqlite3, "connect", log.connect),
            mock.patch.object(torch._C, "PyTorchFileWriter", log.open_in_torch),
        ):
            yield log
    finally:
        _listening.remove(log)


@cache
def _install() -> None:
    listening = _listening  # the interpreter takes globals away before the last events come

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        for log in tuple(listening):
            log.hear(event, arguments)

    # Python cannot remove an audit hook, so there is one for good, deaf without listeners.
    sys.addaudithook(hear)


_BUSY = "/torch/distributed/"
"""Code that calls a lot, and writes none of the subject's files."""

_LOOK_TIMEOUT = 0.1
"""Seconds for which a thread that made a change waits until it has been seen."""


@contextmanager
def looking_at(folder: Path, look: Callable[[str], None]) -> Iterator[None]:
    """Call ``look`` whenever something below ``folder`` changed between two calls of this thread.

    Or of one that starts in the block. That is what readers in other processes could have seen,
    found without racing with them. ``look`` is given the place in the code. What other threads
    and processes write is seen at the next call here.
    """
    before = _state(folder)
    one_at_a_time = threading.Lock()

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal before
        if not event.endswith("return") or _BUSY in frame.f_code.co_filename:
            return
        # A thread that changed something stands still until it has been seen, by whichever thread
        # comes first. Not for ever: its own lock may be what ``look`` waits for.
        if not one_at_a_time.acquire(timeout=_LOOK_TIMEOUT):
            return
        try:
            now = _state(folder)
            if now != before:
                before = now
                look(call_site(frame) or f"{frame.f_code.co_filename}:{frame.f_lineno}")
        finally:
            one_at_a_time.release()

    outer = threading.getprofile()
    threading.setprofile(called)
    try:
        with _profile(called):
            yield
    finally:
        threading.setprofile(outer)


@contextmanager
def looking_away() -> Iterator[None]:
    """Leave out of :func:`looking_at` what is not the subject's: waiting makes many calls."""
    with _profile(None):
        yield


@contextmanager
def _profile(function: Callable[[FrameType, str, Any], object] | None) -> Iterator[None]:
    outer = sys.getprofile()
    sys.setprofile(function)
    try:
        yield
    finally:
        sys.setprofile(outer)


def _state(folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    """The state of the files: name, inode, size and time of change."""
    found = []
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            try:
                state = os.stat(path)
            except FileNotFoundError:
                continue  # renamed since it was listed
            found.append((path, state.st_ino, state.st_size, state.st_mtime_ns))
    return tuple(sorted(found))
