"""A handler is attached by our class where pytest's own attaches it, and taken off likewise."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import _pytest.logging
import pytest

from pytest_ddp.rank.hooks import log_handlers
from pytest_ddp.rank.hooks.log_handlers import AttachedHandlers

NAMES = ("loghandlers.alone", "loghandlers.alone.child", "loghandlers.alone.child.alone")
PYTESTS = _pytest.logging.catching_logs


@pytest.fixture(params=["pytest's", "ours"])
def catching(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(_pytest.logging, "catching_logs", PYTESTS)
    if request.param == "ours":
        log_handlers.attach_at_once(AttachedHandlers())
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


# ------------------------------------------------------------------ handlers of phases


class Phases:
    """Two handlers in phases of a test, attached by pytest's class or by ours."""

    def __init__(self, *, ours: bool) -> None:
        self.handlers = Kept(), Kept()
        self._together = AttachedHandlers(self.handlers)
        if ours:
            log_handlers.attach_at_once(self._together)

    @contextlib.contextmanager
    def phase(self, level: int | None = None) -> Iterator[None]:
        catching: Any = _pytest.logging.catching_logs
        with catching(self.handlers[0], level=level), catching(self.handlers[1], level=level):
            yield

    def end(self) -> None:
        self._together.detach()

    def heard(self) -> list[str]:
        """What both were given."""
        first, second = (handler.messages for handler in self.handlers)
        assert first == second
        return first


@pytest.fixture(params=["pytest's", "ours"])
def phases(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Phases:
    monkeypatch.setattr(_pytest.logging, "catching_logs", PYTESTS)
    return Phases(ours=request.param == "ours")


def test_phases_hear_all_and_nothing_is_heard_between(
    phases: Phases, loggers: list[logging.Logger]
) -> None:
    for test in ("first", "second"):
        for phase in ("setup", "call"):
            with phases.phase():
                for logger in loggers:
                    logger.error("%s of %s", phase, test)
            loggers[1].error("between")
        phases.end()
    assert phases.heard() == [
        f"{phase} of {test}"
        for test in ("first", "second")
        for phase in ("setup", "call")
        for _ in loggers
    ]


def test_detached_all_is_as_before(phases: Phases, loggers: list[logging.Logger]) -> None:
    def state() -> list[object]:
        levels = [logger.level for logger in loggers], [one.level for one in phases.handlers]
        return [levels, *(list(logger.handlers) for logger in loggers)]

    before = state()
    for _ in range(2):
        with phases.phase():
            assert state() != before
    phases.end()
    assert state() == before


def test_logger_that_stops_to_propagate_is_heard_in_the_next_phase(
    phases: Phases, loggers: list[logging.Logger]
) -> None:
    with phases.phase():
        loggers[2].propagate = False
    with phases.phase():
        loggers[2].error("heard")
    assert phases.heard() == ["heard"]


def test_logger_that_propagates_again_is_heard_once_in_the_next_phase(
    phases: Phases, loggers: list[logging.Logger]
) -> None:
    with phases.phase():
        loggers[1].propagate = True
    with phases.phase():
        loggers[1].error("heard")
    assert phases.heard() == ["heard"]


def test_phases_find_their_handlers_taken_away(
    phases: Phases, loggers: list[logging.Logger]
) -> None:
    with phases.phase():
        for logger in loggers:
            logger.handlers.clear()
    with phases.phase():
        loggers[0].error("heard")
    assert phases.heard() == ["heard"]


def test_phases_come_behind_handlers_that_are_there(
    phases: Phases, loggers: list[logging.Logger]
) -> None:
    """One that a fixture has attached may change the record, as formatters with colours do."""
    other = Kept()
    with phases.phase():
        loggers[0].addHandler(other)
    with phases.phase():
        at = [loggers[0].handlers.index(handler) for handler in (other, *phases.handlers)]
    loggers[0].removeHandler(other)
    assert at == sorted(at)


def test_a_handler_keeps_the_level_that_a_phase_has_left_it(
    phases: Phases, loggers: list[logging.Logger]
) -> None:
    with phases.phase():
        phases.handlers[0].setLevel(logging.ERROR)
    with phases.phase():
        assert phases.handlers[0].level == logging.ERROR
        loggers[0].warning("unheard")
    assert phases.handlers[0].messages == []


def test_a_level_is_for_handlers_and_root_alike(
    phases: Phases, loggers: list[logging.Logger]
) -> None:
    before = loggers[0].level
    with phases.phase(logging.DEBUG):
        assert {loggers[0].level, phases.handlers[0].level} == {logging.DEBUG}
        loggers[0].debug("heard")
    assert (loggers[0].level, phases.heard()) == (before, ["heard"])
