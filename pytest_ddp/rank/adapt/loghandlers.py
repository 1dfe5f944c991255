"""Attaches pytest's log handlers at a tenth of the cost.

In each phase of a test, pytest attaches two handlers to every logger that does not propagate. torch
has some forty such loggers, and ``Logger.addHandler`` takes a lock each time: this was a third of
the time of a test in a rank that was kept.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar

import _pytest.logging
import pytest

_Handler = TypeVar("_Handler", bound=logging.Handler)
_MUTE = 1 << 31
"""A level that no record reaches."""


class Together:
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
        self.reached = Reached()

    @classmethod
    def of_phases(cls, config: pytest.Config) -> Together:
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


def attach_at_once(together: Together) -> None:
    """Make pytest attach and detach handlers under a single lock, for the life of this process.

    Args:
        together: handlers that stay attached until :meth:`Together.detach`.
    """
    # Other releases of pytest use the root logger only, or other code.
    # Other releases of pytest know the root logger only, or go another way.
    if "attached_loggers" in getattr(_pytest.logging.catching_logs, "__slots__", ()):
        _AtOnce.together = together
        _pytest.logging.catching_logs = _AtOnce  # type: ignore[misc]


class _AtOnce(_pytest.logging.catching_logs[_Handler]):
    __slots__ = ()
    together: ClassVar[Together]

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


class Reached:
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
