"""Shows output and log records of ranks while they run, on the terminal and in the log file."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from pytest_ddp.attempt.live import LiveLine
from pytest_ddp.launch.streams import NewPath, Piece, Record, Source, Text
from pytest_ddp.system.own import os, time

_HOLD = 0.1
"""Seconds that a piece waits for older ones of other ranks."""
_MOST = 1 << 25
"""Characters that wait at most; each takes more than a byte of memory."""
_TWO_FILES = (
    "rank {} sets the log file to {}, and rank {} to {}: pytest has one log file; that of the "
    "first rank is used"
)


def listening_level(config: pytest.Config) -> int | None:
    """The least level of records for a live log or a log file; None without either."""
    return min((handler.level for handler in _handlers(config)), default=None)


def _handlers(config: pytest.Config) -> list[logging.Handler]:
    """Those of pytest's handlers that show or write their records."""
    plugin: Any = config.pluginmanager.get_plugin("logging-plugin")
    if plugin is None:
        return []
    found = [plugin.log_cli_handler, plugin.log_file_handler]
    return [handler for handler in found if not _is_idle(handler)]


def _is_idle(handler: Any) -> bool:
    # Evaluated each time, since a conftest file may set another log file for each test.
    stream = getattr(handler, "stream", None)
    return isinstance(handler, logging.NullHandler) or getattr(stream, "name", "") == os.devnull


class Display:
    """Shows pieces in order of time, as pytest shows those of its own process."""

    def __init__(self, config: pytest.Config, live: LiveLine, warn: Callable[[str], None]) -> None:
        self._config, self._live, self._warn = config, live, warn
        self._capture: Any = config.pluginmanager.getplugin("capturemanager")
        self._waiting: list[tuple[float, int, Piece]] = []
        self._size = 0
        self._count = itertools.count()
        self._behind: dict[Source, float] = {}
        """Sources with unread older pieces, and the moment up to which they are read."""
        self._when: str | None = ""
        self._path_rank = 0
        self._paths: list[Path] = []
        """Log files that this rank has set in the running test."""

    def take(self, source: Source, pieces: list[Piece]) -> None:
        """Take pieces that were read from a source."""
        for piece in pieces:
            heapq.heappush(self._waiting, (piece.moment, next(self._count), piece))
            self._size += piece.size
        if source.behind is None:
            self._behind.pop(source, None)
        else:
            self._behind[source] = source.behind

    def due_in(self) -> float:
        """Seconds until a piece has waited long enough; infinite if there is none."""
        if not self._waiting:
            return math.inf
        return max(0.0, self._waiting[0][0] + _HOLD - time.monotonic())

    def show(self, *, all_: bool = False) -> None:
        """Show the pieces that are due, or all of them."""
        until = math.inf if all_ else min((time.monotonic() - _HOLD, *self._behind.values()))
        due: list[Piece] = []
        while self._waiting and (self._waiting[0][0] <= until or self._size > _MOST):
            due.append(heapq.heappop(self._waiting)[2])
            self._size -= due[-1].size
        if due:
            self._live.give_way()
        for stream, pieces in itertools.groupby(due, _stream_of):
            if stream:
                self._write(stream, "".join(p.text for p in pieces if isinstance(p, Text)))
            else:
                self._log(pieces)
        if all_:
            # Before the next piece pytest may change the handlers' state.
            self._when = ""
            self._paths.clear()

    def _write(self, name: str, text: str) -> None:
        manager = self._capture
        with manager.global_and_fixture_disabled() if manager else contextlib.nullcontext():
            stream = getattr(sys, name)
            encoding = getattr(stream, "encoding", None) or "utf-8"
            # The reader of the pipe may be gone; pytest finds out on its own.
            with contextlib.suppress(BrokenPipeError):
                stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
                stream.flush()

    def _log(self, pieces: Iterable[Piece]) -> None:
        handlers = _handlers(self._config)
        for piece in pieces:
            if isinstance(piece, NewPath):
                self._set_path(piece)
                handlers = _handlers(self._config)
            if not isinstance(piece, Record):
                continue
            if piece.logged.when != self._when:
                self._when = piece.logged.when
                for handler in handlers:
                    if (set_when := getattr(handler, "set_when", None)) is not None:
                        set_when(self._when)
            record = piece.logged.record(piece.prefix)
            for handler in handlers:
                if record.levelno >= handler.level:
                    handler.handle(record)

    def _set_path(self, new: NewPath) -> None:
        plugin: Any = self._config.pluginmanager.get_plugin("logging-plugin")
        if plugin is None:
            return
        path = self._config.rootpath / new.path
        if self._paths and self._path_rank != new.rank:
            if path not in self._paths:
                self._warn(_TWO_FILES.format(self._path_rank, self._paths[-1], new.rank, path))
            return
        self._path_rank = new.rank
        self._paths.append(path)
        # If it is set already in this process, setting it again would truncate the file.
        if path != Path(getattr(plugin.log_file_handler.stream, "name", "")):
            plugin.set_log_path(new.path)


def _stream_of(piece: Piece) -> str:
    return piece.stream if isinstance(piece, Text) else ""
