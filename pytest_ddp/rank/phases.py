"""Follow pytest through the phases of an item, and keep interrupts inside the rank."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from pytest_ddp.protocol import Phase
from pytest_ddp.rank.standing import Surveyor


class Interrupted(BaseException):
    """Stands for a ``KeyboardInterrupt`` that a test raised.

    pytest lets the real one through, which would end the rank without a report.
    """


# Shown as what it stands for.
Interrupted.__module__, Interrupted.__qualname__ = "builtins", "KeyboardInterrupt"


class Phases:
    """A pytest plugin around setup, call and teardown of each item."""

    def __init__(self, surveyor: Surveyor) -> None:
        self._surveyor = surveyor
        self.broke_fixture = False
        """True if an exception that is no ``Exception`` broke off a fixture.

        pytest 9.2 cannot set such a fixture up again in the same process.
        """

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        with self._phase(Phase.SETUP):
            # Under xdist wide fixtures of the last file may still be up.
            item.session._setupstate.teardown_exact(item)
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        with self._phase(Phase.CALL):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Iterator[None]:
        with self._phase(Phase.TEARDOWN):
            return (yield)

    @contextlib.contextmanager
    def _phase(self, phase: Phase) -> Iterator[None]:
        self._surveyor.phase = phase.value
        fixtures = phase is not Phase.CALL
        try:
            yield
        except KeyboardInterrupt as interrupt:
            self.broke_fixture |= fixtures
            raise Interrupted(*interrupt.args).with_traceback(interrupt.__traceback__) from None
        except SystemExit:
            self.broke_fixture |= fixtures
            raise

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_set_timer(self) -> bool:
        """Keep pytest-timeout still: the controller's deadline covers the rank."""
        return True

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_cancel_timer(self) -> bool:
        return True
