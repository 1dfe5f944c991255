"""Shows output and log records of ranks while they run, on the terminal and in the log file."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO

import pytest

from pytest_ddp.launch.streams import LoggedPiece, NewPath, Piece, Source, Text
from pytest_ddp.outcome.outcome import Ending, ranks_text
from pytest_ddp.protocol.rank_status import RankStatus, phase_text
from pytest_ddp.system.stdlib import os, time

# ------------------------------------------------------------------
# One line on the terminal that says what the ranks of a long test are doing.
#
# It is written below pytest's own line and erased without a trace. Cursor movements are relative,
# so that they are right after the terminal has scrolled.

_PATIENCE = 5.0
"""Seconds that a test runs before the line is shown."""
_INTERVAL = 1.0
"""Seconds between updates of the line."""
_SHORTEST_NAME = 12
"""Characters of the test's name that are kept where the line is too long."""

_ERASE = "\x1b[K"
"""The sequence that erases from the cursor to the end of the line."""
_UP = "\x1b[A"


class Writer(Protocol):
    """The part of pytest's terminal writer that is used here."""

    @property
    def fullwidth(self) -> int: ...
    @property
    def width_of_current_line(self) -> int: ...
    @property
    def _file(self) -> TextIO: ...


def terminal_of(config: pytest.Config) -> Writer | None:
    """The terminal for the line; None where there is to be none.

    That is without a terminal, on one without a cursor, in an xdist worker, and with ``-s`` or
    ``--capture=tee-sys``, where the output of ranks goes to the terminal.
    """
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if (
        reporter is None
        or hasattr(config, "workerinput")
        or config.getoption("capture", "no") in ("no", "tee-sys")  # no option with -p no:capture
    ):
        return None
    if not reporter.isatty or os.environ.get("TERM", "dumb") == "dumb":
        return None
    writer: Writer = config.get_terminal_writer()
    return writer


class LiveLine:
    """The line; one object for all tests of a session."""

    def __init__(self, writer: Writer | None) -> None:
        self._terminal = writer
        self._name = ""
        self._began = self._due = math.inf
        self._column: int | None = None
        """The column in which pytest's own line ended; None while ours is not shown."""

    def begin(self, name: str) -> None:
        """A test begins."""
        self._name = name
        self._began = time.monotonic()
        self._due = self._began + _PATIENCE if self._terminal is not None else math.inf

    def due_in(self) -> float:
        """Seconds until the line is to be written; infinite if never."""
        return max(0.0, self._due - time.monotonic())

    def show(self, doing: Mapping[int, str]) -> None:
        """Write the line, if it is due.

        Args:
            doing: what each rank does, as words that follow "rank 3".
        """
        now = time.monotonic()
        if self._terminal is None or now < self._due:
            return
        self._due = now + _INTERVAL
        if self._column is None:
            self._column = self._terminal.width_of_current_line
            self._write("\n")
        text = line(self._name, now - self._began, doing, self._terminal.fullwidth - 1)
        self._write(f"\r{text}{_ERASE}")

    def give_way(self) -> None:
        """Erase the line before other output; it is shown again below that."""
        self._erase()

    def erase(self) -> None:
        """The test is over: erase the line and move the cursor back to pytest's own line."""
        self._due = math.inf
        self._erase()

    def _erase(self) -> None:
        if self._column is None:
            return
        right = f"\x1b[{self._column}C" if self._column else ""
        self._write(f"\r{_ERASE}{_UP}{right}")
        self._column = None

    def _write(self, text: str) -> None:
        # Not with the writer's own method, which would count the columns as pytest's line.
        assert self._terminal is not None
        self._terminal._file.write(text)
        self._terminal._file.flush()


def line(name: str, seconds: float, doing: Mapping[int, str], width: int) -> str:
    """``ddp: test_x 12 s | rank 0 in all_reduce #7, ranks 1-3 in forward``, cut to the width."""
    by_words: dict[str, list[int]] = {}
    for rank, words in doing.items():
        by_words.setdefault(words, []).append(rank)
    ranks = ", ".join(f"{ranks_text(ranks)} {words}" for words, ranks in by_words.items())
    rest = f" {seconds:.0f} s | {ranks}"
    # A name may have characters that move the cursor or are two columns wide.
    name = name.encode("unicode_escape").decode()
    room = max(width - len("ddp: ") - len(rest), _SHORTEST_NAME)
    return _cut(f"ddp: {_cut(name, room)}{_plain(rest)}", width)


def activity_of(ending: Ending | None, status: RankStatus | None) -> str:
    """What a rank does, as words that follow "rank 3"."""
    if ending is not None:
        return _ENDINGS[ending]
    if status is None:
        return "does not answer"
    if status.blocked and status.waits:
        wait = status.waits[0]
        return f"in {wait.operation} #{wait.number}"
    if narrower := status.phase[1:]:
        return f"in {phase_text(narrower)}"
    if (place := status.place) is not None:
        return f"at {os.path.basename(place.file)}:{place.line}"
    return f"in {phase_text(status.phase) or 'setup'}"


_ENDINGS = {
    Ending.DONE: "ended",
    Ending.EXITED: "died",
    Ending.ANNOUNCED: "died as announced",
    Ending.STOPPED: "stopped",
    Ending.NOT_BEGUN: "not begun",
}


def _plain(text: str) -> str:
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(width - 3, 0)]}..."[:width]


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
    """pytest's handlers of log records, without those that show and write nothing."""
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
        """Log files that rank ``_path_rank`` has set in the running test."""

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
            if not isinstance(piece, LoggedPiece):
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
