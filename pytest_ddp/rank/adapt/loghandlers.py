"""pytest's log handlers, attached at a tenth of the cost.

In each phase of a test pytest attaches two of them to every logger that does not propagate.
torch has some forty such loggers: ``Logger.addHandler``, which takes a lock each time, was a
third of what a warm test took in a rank.
"""

from __future__ import annotations

import logging
from typing import TypeVar

import _pytest.logging

_Handler = TypeVar("_Handler", bound=logging.Handler)


def attach_at_once() -> None:
    """Have pytest attach and detach a handler under one lock, from now on in this process."""
    # Other releases of pytest know the root logger only, or go another way.
    if "attached_loggers" in getattr(_pytest.logging.catching_logs, "__slots__", ()):
        _pytest.logging.catching_logs = _AtOnce  # type: ignore[misc]


class _AtOnce(_pytest.logging.catching_logs[_Handler]):
    __slots__ = ()

    def __enter__(self) -> _Handler:
        root, handler = logging.getLogger(), self.handler
        if self.level is not None:
            handler.setLevel(self.level)
        with logging._lock:  # type: ignore[attr-defined]
            self.attached_loggers += [root, *_not_propagating(root)]
            for logger in self.attached_loggers:
                handlers = logger.handlers
                if handler not in handlers:
                    handlers.append(handler)
        if self.level is not None:
            self.orig_level = root.level
            root.setLevel(min(self.orig_level, self.level))
        return handler

    def __exit__(self, *_: object) -> None:
        handler = self.handler
        if self.level is not None:
            logging.getLogger().setLevel(self.orig_level)
        with logging._lock:  # type: ignore[attr-defined]
            for logger in self.attached_loggers:
                handlers = logger.handlers
                if handler in handlers:
                    handlers.remove(handler)
        self.attached_loggers.clear()


def _not_propagating(root: logging.Logger) -> list[logging.Logger]:
    return [
        logger
        for logger in root.manager.loggerDict.values()
        # By their class, since to ask place holders for what they do not have takes longer.
        if isinstance(logger, logging.Logger) and not logger.propagate and logger is not root
    ]
