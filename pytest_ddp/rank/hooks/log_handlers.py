"""Attaches pytest's log handlers at a tenth of the cost.

In each phase of a test, pytest attaches two handlers to every logger that does not propagate. torch
has some forty such loggers, and ``Logger.addHandler`` takes a lock each time: this was a third of
the time of a test in a rank that was kept.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, TypeVar

import _pytest.logging
import pytest

from pytest_ddp.protocol import log_records
from pytest_ddp.system.stdlib import os, socket, time

_Handler = TypeVar("_Handler", bound=logging.Handler)
_MUTE = 1 << 31
"""A level that no record reaches."""


class AttachedHandlers:
    """Handlers that stay attached from phase to phase, and from test to test.

    Between two phases they are muted by their level, as if pytest had detached them.
    """

    def __init__(self, handlers: Iterable[logging.Handler] = ()) -> None:
        """
        Args:
            handlers: in the order in which pytest attaches them, without others between them.
        """
        self._handlers = list(handlers)
        self._levels = [handler.level for handler in self._handlers]
        self._loggers: list[logging.Logger] = []
        self.reached = ReachedHandlers()

    @classmethod
    def of_phases(cls, config: pytest.Config) -> AttachedHandlers:
        """The handlers that pytest attaches for each phase; empty for another release's plugin."""
        plugin: Any = config.pluginmanager.get_plugin("logging-plugin")
        if not (hasattr(plugin, "caplog_handler") and hasattr(plugin, "report_handler")):
            return cls()
        return cls((plugin.caplog_handler, plugin.report_handler))

    def __contains__(self, handler: logging.Handler) -> bool:
        return handler in self._handlers

    def enter(self, handler: logging.Handler) -> None:
        """Begin a phase for a handler; the first handler attaches all."""
        number = self._handlers.index(handler)
        handler.level = self._levels[number]
        if number > 0:
            return
        with logging._lock:  # type: ignore[attr-defined]
            loggers = self.reached.now()
            if loggers != self._loggers:
                for logger in self._loggers:
                    if logger not in loggers:
                        self._take_off(logger)
                self._loggers = loggers
            ours, count = self._handlers, -len(self._handlers)
            for logger in loggers:
                # They must be last, where pytest would attach them: handlers may change a record.
                if logger.handlers[count:] != ours:
                    self._take_off(logger)
                    logger.handlers += ours

    def leave(self, handler: logging.Handler) -> None:
        """End a phase for a handler."""
        self._levels[self._handlers.index(handler)] = handler.level
        handler.level = _MUTE

    def detach(self) -> None:
        """Detach the handlers, before an import or the end of the session."""
        with logging._lock:  # type: ignore[attr-defined]
            for logger in self._loggers:
                self._take_off(logger)
        self._loggers = []
        for handler, level in zip(self._handlers, self._levels, strict=True):
            handler.level = level

    def _take_off(self, logger: logging.Logger) -> None:
        if logger.handlers[-len(self._handlers) :] == self._handlers:
            del logger.handlers[-len(self._handlers) :]
        for handler in self._handlers:
            if handler in logger.handlers:
                logger.handlers.remove(handler)


def attach_at_once(together: AttachedHandlers) -> None:
    """Make pytest attach and detach handlers under a single lock, for the life of this process.

    Args:
        together: handlers that stay attached until :meth:`AttachedHandlers.detach`.
    """
    # Other releases of pytest use the root logger only, or other code.
    # Other releases of pytest know the root logger only, or go another way.
    if "attached_loggers" in getattr(_pytest.logging.catching_logs, "__slots__", ()):
        _AtOnce.together = together
        _pytest.logging.catching_logs = _AtOnce  # type: ignore[misc]


class _AtOnce(_pytest.logging.catching_logs[_Handler]):
    __slots__ = ()
    together: ClassVar[AttachedHandlers]

    def __enter__(self) -> _Handler:
        root, handler = logging.getLogger(), self.handler
        if handler in self.together:
            self.together.enter(handler)
        else:
            self._attach(handler)
        if self.level is not None:
            handler.setLevel(self.level)
            self.orig_level = root.level
            root.setLevel(min(self.orig_level, self.level))
        return handler

    def _attach(self, handler: _Handler) -> None:
        with logging._lock:  # type: ignore[attr-defined]
            self.attached_loggers += self.together.reached.now()
            for logger in self.attached_loggers:
                handlers = logger.handlers
                if handler not in handlers:
                    handlers.append(handler)

    def __exit__(self, *_: object) -> None:
        handler = self.handler
        if self.level is not None:
            logging.getLogger().setLevel(self.orig_level)
        if handler in self.together:
            self.together.leave(handler)
            return
        with logging._lock:  # type: ignore[attr-defined]
            for logger in self.attached_loggers:
                handlers = logger.handlers
                if handler in handlers:
                    handlers.remove(handler)
        self.attached_loggers.clear()


class ReachedHandlers:
    """The root logger, and all loggers whose records do not propagate to it."""

    def __init__(self) -> None:
        self._known: list[logging.Logger | logging.PlaceHolder] = []
        self._loggers: list[logging.Logger] = []
        """The loggers among the known ones; the others are placeholders."""

    def now(self) -> list[logging.Logger]:
        root = logging.getLogger()
        known = list(root.manager.loggerDict.values())
        # Checking the types of hundreds of loggers, most of which are permanent, in each phase
        # would be slow. Comparing the lists is fast: items are compared by identity first.
        if known != self._known:
            self._known = known
            self._loggers = [
                one for one in known if isinstance(one, logging.Logger) and one is not root
            ]
        return [root, *[logger for logger in self._loggers if not logger.propagate]]


# ------------------------------------------------------------------
# Log records of a rank, which are sent to pytest's live log and log file.


class LiveLogs(logging.Handler):
    """Replaces pytest's live log handler in ranks, and sends the records to the pytest process."""

    def __init__(self, config: pytest.Config, descriptor: int) -> None:
        """
        Args:
            config: of the rank's session.
            descriptor: the socket for records.
        """
        super().__init__()
        self._socket = socket.socket(fileno=descriptor)
        self._inode = os.fstat(descriptor).st_ino
        self._when: str | None = None
        self._sends = False
        self._has_collected = True
        self._plugin: Any = config.pluginmanager.get_plugin("logging-plugin")
        if self._plugin is not None:
            self._plugin.log_cli_handler = self
            self._plugin.set_log_path = self._set_path

    # ------------------------------------------------------------------ for the runner

    def begin(self, level: int | None) -> None:
        """Begin a test; records from ``level`` on are sent, none with None."""
        if self._has_collected:
            self._lower_level()
            self._has_collected = False
        if level is None:
            self._sends = False
        else:
            self._send_from(level)

    def _send_from(self, level: int) -> None:
        self._sends = True
        self.setLevel(level)
        # For each test, as there may be new loggers that do not propagate, and
        # logging.basicConfig(force=True) removes all handlers.
        _pytest.logging.catching_logs(self).__enter__()

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Send nothing during collection: the pytest process logs the same at its own."""
        sent, self._sends = self._sends, False
        try:
            yield
        finally:
            self._sends = sent
            self._has_collected = True

    def _lower_level(self) -> None:
        """Lower the root logger's level, as pytest's loop does after collection."""
        names = ("log_cli_level", "log_file_level")
        levels = (getattr(self._plugin, name, None) for name in names)
        root = logging.getLogger()
        root.setLevel(min([root.level, *(level for level in levels if level is not None)]))

    # ------------------------------------------------------------------ for pytest

    def reset(self) -> None:
        """Part of pytest's interface: called when a test begins."""

    def set_when(self, when: str | None) -> None:
        """Part of pytest's interface: called when a phase begins."""
        self._when = when

    def _set_path(self, fname: str) -> None:
        # As pytest's own, but the pytest process opens the file, once for all ranks.
        if not self._sends:
            self._send_from(self._plugin.log_file_level or logging.NOTSET)
        self._send(log_records.LogPath(time.monotonic(), str(fname)).packet())

    # ------------------------------------------------------------------ for logging

    def emit(self, record: logging.LogRecord) -> None:
        """Send the record; waits while the pytest process does not keep up."""
        if not self._sends:
            return
        # A broken record fails the test in pytest's capturing handler, so it is ignored here.
        with contextlib.suppress(Exception):
            self._send(log_records.pack(record, self._when, time.monotonic()))

    def _send(self, packet: bytes) -> None:
        # If the test has closed the descriptor, its number may be another file's by now.
        if os.fstat(self._socket.fileno()).st_ino == self._inode:
            log_records.send(self._socket, packet)
