"""A handler is attached by our class where pytest's own attaches it, and taken off likewise."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import _pytest.logging
import pytest

from pytest_ddp.rank.adapt import loghandlers

NAMES = ("loghandlers.alone", "loghandlers.alone.child", "loghandlers.alone.child.alone")
PYTESTS = _pytest.logging.catching_logs


@pytest.fixture(params=["pytest's", "ours"])
def catching(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(_pytest.logging, "catching_logs", PYTESTS)
    if request.param == "ours":
        loghandlers.attach_at_once()
        assert _pytest.logging.catching_logs is not PYTESTS
    return _pytest.logging.catching_logs


@pytest.fixture
def loggers() -> Iterator[list[logging.Logger]]:
    """The root, one that does not propagate, a child that does, its child that does not."""
    root, level = logging.getLogger(), logging.getLogger().level
    made = [logging.getLogger(name) for name in NAMES]
    made[0].propagate = made[2].propagate = False
    yield [root, *made]
    root.setLevel(level)
    for logger in made:
        logger.propagate = True
        logger.handlers.clear()


class Kept(logging.Handler):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def test_every_record_comes_once(catching: Any, loggers: list[logging.Logger]) -> None:
    handler = Kept()
    with catching(handler, level=logging.INFO) as entered:
        assert entered is handler
        for logger in loggers:
            logger.info("%s", logger.name)
    assert handler.messages == ["root", *NAMES]


def test_all_is_as_before(catching: Any, loggers: list[logging.Logger]) -> None:
    before = [list(logger.handlers) for logger in loggers]
    level = loggers[0].level
    with catching(Kept(), level=logging.DEBUG):
        assert loggers[0].level == logging.DEBUG
        assert [list(logger.handlers) for logger in loggers] != before
    assert [list(logger.handlers) for logger in loggers] == before
    assert loggers[0].level == level


def test_level_is_let_be(catching: Any, loggers: list[logging.Logger]) -> None:
    loggers[0].setLevel(logging.ERROR)
    with catching(Kept()):
        assert loggers[0].level == logging.ERROR


def test_handler_that_is_there_is_not_attached_twice(
    catching: Any, loggers: list[logging.Logger]
) -> None:
    handler = Kept()
    loggers[1].addHandler(handler)
    with catching(handler):
        assert loggers[1].handlers.count(handler) == 1
    assert handler not in loggers[1].handlers


def test_body_may_take_the_handler_away(catching: Any, loggers: list[logging.Logger]) -> None:
    handler = Kept()
    with catching(handler):
        for logger in loggers:
            logger.removeHandler(handler)
    assert all(handler not in logger.handlers for logger in loggers)


def test_logger_that_propagates_again_loses_the_handler(
    catching: Any, loggers: list[logging.Logger]
) -> None:
    handler = Kept()
    with catching(handler):
        loggers[1].propagate = True
    assert handler not in loggers[1].handlers
