"""Which files the Python code of this process writes, and what can be read in between.

An audit hook hears what Python opens and renames, wherever the path came from. What C++
opens by itself (``torch.save`` with a path) it does not hear.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

_listening: list[WriteLog] = []


class WriteLog:
    """The paths below a folder that were opened for writing, or renamed to.

    ``before`` is called each time, before it happens.
    """

    def __init__(self, folder: Path, before: Callable[[], None] | None = None) -> None:
        self.paths: dict[str, None] = {}
        self._folder = folder
        self._before = before

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Keep what an audit event says of writing."""
        if event == "open" and arguments[2] & os.O_ACCMODE != os.O_RDONLY:
            self.keep(arguments[0])
        elif event == "os.rename":
            self.keep(arguments[1])

    def keep(self, path: object) -> None:
        """Note a path, if it lies in the folder."""
        if not isinstance(path, str | bytes | os.PathLike):
            return  # a file descriptor, whose opening was heard
        whole = Path(os.path.abspath(os.fsdecode(path)))
        if whole.is_relative_to(self._folder):
            self.paths[str(whole.relative_to(self._folder))] = None
            if self._before is not None:
                self._before()

    def connect(self, database: Any, *arguments: Any, **options: Any) -> sqlite3.Connection:
        """As ``sqlite3.connect``, noting the changes of rows.

        To connect is not to write: readers do it without saying that they only read.
        """
        connection: sqlite3.Connection = _connect(database, *arguments, **options)

        def asked(action: int, table: str | None, *_: object) -> int:
            # CREATE TABLE IF NOT EXISTS asks for this table, also where nothing is created.
            if action in _CHANGES and not str(table).startswith("sqlite_"):
                self.keep(_file_of(database))
            return sqlite3.SQLITE_OK

        connection.set_authorizer(asked)
        return connection


_CHANGES = frozenset({sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE})
_connect = sqlite3.connect


def _file_of(database: str | bytes | os.PathLike[str]) -> str:
    name = os.fsdecode(database)
    return urlsplit(name).path if name.startswith("file:") else name


@contextmanager
def writes_below(folder: Path, before: Callable[[], None] | None = None) -> Iterator[WriteLog]:
    """Note what this process writes below ``folder`` in the block; see :class:`WriteLog`."""
    _install()
    log = WriteLog(folder.absolute(), before)
    _listening.append(log)
    try:
        # The audit events of sqlite3 come before a connection can be watched, or written to.
        with mock.patch.object(sqlite3, "connect", log.connect):
            yield log
    finally:
        _listening.remove(log)


@cache
def _install() -> None:
    # Python cannot remove an audit hook, so there is one for good, deaf without listeners.
    sys.addaudithook(_hear)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    for log in tuple(_listening):
        log.hear(event, arguments)


_BUSY = "/torch/distributed/"
"""Code that calls a lot, and writes none of the subject's files."""


@contextmanager
def looking_at(folder: Path, look: Callable[[str], None]) -> Iterator[None]:
    """Call ``look`` whenever something below ``folder`` changed between two calls of this thread.

    That is what readers in other processes could have seen, found without racing with them.
    ``look`` is given the place in the code. What other threads and processes write is seen
    at the next call here.
    """
    before = _state(folder)

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal before
        if not event.endswith("return") or _BUSY in frame.f_code.co_filename:
            return
        now = _state(folder)
        if now != before:
            before = now
            look(f"{frame.f_code.co_filename}:{frame.f_lineno}")

    with _profile(called):
        yield


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
    """What tells one state of the files from another: name, inode, size and time of change."""
    found = []
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            try:
                stat = os.stat(path)
            except FileNotFoundError:
                continue  # renamed since it was listed
            found.append((path, stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(sorted(found))
