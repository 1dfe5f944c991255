"""Follows pytest through the phases of an item, and keeps interrupts inside the rank."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_ddp.protocol.messages import Phase
from pytest_ddp.protocol.rank_status import CodeLine
from pytest_ddp.rank.cleanup.cleanup import Cleanup
from pytest_ddp.rank.groups.group_fixtures import GroupFixtures
from pytest_ddp.rank.status.phase_stack import PhaseStack
from pytest_ddp.system.stdlib import inspect

_AGAIN = (
    "a plugin began the {phase} of this test a second time, in this rank alone, where its peers "
    "do not take part. Only plugins that call pytest's runtestprotocol can run a ddp test again."
)


class Interrupted(BaseException):
    """Replaces a ``KeyboardInterrupt`` that a test raised.

    pytest does not catch the real one, which would end the rank without a report.
    """


# Users see the name of what it replaces.
Interrupted.__module__, Interrupted.__qualname__ = "builtins", "KeyboardInterrupt"


class PhaseHooks:
    """A pytest plugin around setup, call and teardown of each item."""

    def __init__(
        self, phase_stack: PhaseStack, cleanup: Cleanup, group_fixtures: GroupFixtures
    ) -> None:
        self._phase_stack = phase_stack
        self._cleanup, self._group_fixtures = cleanup, group_fixtures
        self._begun: set[Phase] = set()
        self._item: pytest.Item | None = None
        self._site: CodeLine | None = None
        """The line at which the item's function begins."""
        _follow_fixture_ends(phase_stack)
        self.broke_fixture = ""
        """Type of an exception that interrupted a fixture, and that pytest does not expect there.

        pytest 9.2 then leaves fixtures half set up: neither usable nor torn down.
        """

    def begin(self) -> None:
        """Start over for the next test."""
        self._begun.clear()
        self.broke_fixture = ""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        with self._phase(Phase.SETUP, item):
            # Under xdist, wide fixtures of the last file may still be set up.
            item.session._setupstate.teardown_exact(item)
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        with self._phase(Phase.CALL, item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        with self._phase(Phase.TEARDOWN, item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        # One hook for three observers: a function-scoped fixture, as most are, concerns only one.
        if fixturedef.scope == "function":
            with _phase_of(self._phase_stack, fixturedef):
                return (yield)
        with (
            self._group_fixtures.follow(fixturedef),
            self._cleanup.follow(),
            _phase_of(self._phase_stack, fixturedef),
        ):
            return (yield)

    @contextlib.contextmanager
    def _phase(self, phase: Phase, item: pytest.Item) -> Iterator[None]:
        if phase in self._begun:
            pytest.fail(_AGAIN.format(phase=phase), pytrace=False)
        self._begun.add(phase)
        if item is not self._item:
            self._item, self._site = item, _site_of(item)
        self._phase_stack.begin(phase.value, self._site)
        fixtures = phase is not Phase.CALL
        try:
            yield
        except (Exception, pytest.skip.Exception, pytest.fail.Exception) as error:
            if isinstance(error, Exception):
                self._phase_stack.note_exception(error, self._site)
            raise
        except BaseException as error:
            if fixtures:
                self.broke_fixture = type(error).__name__
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted(*error.args).with_traceback(error.__traceback__) from None
            raise

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_set_timer(self) -> bool:
        """Disable pytest-timeout: the controller's deadline covers the rank."""
        return True

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_cancel_timer(self) -> bool:
        return True


def _follow_fixture_ends(phase_stack: PhaseStack) -> None:
    """Begin a phase for each fixture's teardown: pytest only has a hook after it."""
    fixture_type: Any = pytest.FixtureDef
    original = fixture_type.finish

    @functools.wraps(original)
    def finish(fixturedef: pytest.FixtureDef[Any], *args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        if fixturedef.cached_result is None:  # torn down already
            original(fixturedef, *args, **kwargs)
            return
        with _phase_of(phase_stack, fixturedef):
            original(fixturedef, *args, **kwargs)

    fixture_type.finish = finish


def _site_of(item: pytest.Item) -> CodeLine:
    """The line at which the test's function begins."""
    # Known since collection; reading item.function would make the test's instance too early.
    file, line, _ = item.location
    name = item.name.partition("[")[0]
    return CodeLine(str(item.config.rootpath / file), (line or 0) + 1, name)


@contextlib.contextmanager
def _phase_of(phase_stack: PhaseStack, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
    code = getattr(inspect.unwrap(fixturedef.func), "__code__", _phase_of.__code__)
    depth = phase_stack.enter_function(f"fixture {fixturedef.argname}", code)
    try:
        yield
    finally:
        phase_stack.leave(depth)
