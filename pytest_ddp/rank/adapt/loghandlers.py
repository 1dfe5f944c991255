"""pytest's log handlers, attached at a tenth of the cost.

In each phase of a test pytest attaches two of them to every logger that does not propagate.
torch has some forty such loggers: ``Logger.addHandler``, which takes a lock each time, was a
third of what a warm test took in a rank.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar

import _pytest.logging
import pytest

_Handler = TypeVar("_Handler", bound=logging.Handler)
_MUTE = 1 << 31
"""No record has such a level."""


class Together:
    """Handlers that stay where they are from phase to phase, and from test to test.

    Between two phases they hear nothing, as if pytest had detached them.
    """

    def __init__(self, handlers: Iterable[logging.Handler] = ()) -> None:
        """
        Args:
            handlers: in the order in which pytest attaches them, one right after the other.
        """
        self._handlers = list(handlers)
        self._levels = [handler.level for handler in self._handlers]
        self._loggers: list[logging.Logger] = []
        self.reached = Reached()

    @classmethod
    def of_phases(cls, config: pytest.Config) -> Together:
        """Those that pytest attaches for each phase; none in a release that has no such."""
        plugin: Any = config.pluginmanager.get_plugin("logging-plugin")
        if not (hasattr(plugin, "caplog_handler") and hasattr(plugin, "report_handler")):
            return cls()
        return cls((plugin.caplog_handler, plugin.report_handler))

    def __contains__(self, handler: logging.Handler) -> bool:
        return handler in self._handlers

    def enter(self, handler: logging.Handler) -> None:
        """A phase begins for one of them; it attaches all, with its first."""
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
                # Last, as they would be if they came anew: handlers may change a record.
                if logger.handlers[count:] != ours:
                    self._take_off(logger)
                    logger.handlers += ours

    def leave(self, handler: logging.Handler) -> None:
        """The phase ends for one of them."""
        self._levels[self._handlers.index(handler)] = handler.level
        handler.level = _MUTE

    def detach(self) -> None:
        """Something else than a phase of a test comes: an import, or the end."""
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
    """Have pytest attach and detach a handler under one lock, from now on in this process.

    Args:
        together: stay attached until they are told that something else comes.
    """
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
    """The root logger, and all whose records do not come to it."""

    def __init__(self) -> None:
        self._known: list[logging.Logger | logging.PlaceHolder] = []
        self._loggers: list[logging.Logger] = []
        """Those of the known that are no place holders."""

    def now(self) -> list[logging.Logger]:
        root = logging.getLogger()
        known = list(root.manager.loggerDict.values())
        # The classes of hundreds of loggers, most of which are there for ever, are not asked for
        # in each phase. An element is compared by identity first, which is enough here.
        if known != self._known:
            self._known = known
            self._loggers = [
                one for one in known if isinstance(one, logging.Logger) and one is not root
            ]
        return [root, *[logger for logger in self._loggers if not logger.propagate]]
