"""Cleaning up after a test: restore what it changed, name what it left."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Generator, Iterator
from typing import Any

import pytest

from pytest_ddp.rank.care.surroundings import Company, Settings
from pytest_ddp.rank.exits import faults
from pytest_ddp.rank.groups import torchstate
from pytest_ddp.wire.protocol import Left


class Care:
    """A pytest plugin that compares the rank before and after each test.

    The comparison comes after the teardown of the item itself and before that of
    module and session, whose fixtures may rightly hold on to what they changed.
    """

    def __init__(self, asked_for: Container[str]) -> None:
        """
        Args:
            asked_for: names of the process groups that the user's own code has made.
        """
        self._asked_for = asked_for
        self.begin()

    def begin(self) -> None:
        """Take the state of now as what the next test must return to."""
        faults.rearm()
        self._settings = Settings.now()
        self._company = Company.now()
        self.changes: tuple[str, ...] = ()
        self.strangers: tuple[Left, ...] = ()
        self.has_more_groups = False
        """The test came by groups, its own or such as a library keeps (a device mesh's)."""
        self.has_other_default_group = False
        """The test ended with a default group that was not there before, nor of a wide fixture."""
        self.ended_alone = False
        """Nothing that is wider than the test has ended with it."""

    def more_stores(self) -> tuple[Left, ...]:
        """Stores that the test holds on to."""
        return self._company.more_stores()

    def keeps_threads(self) -> bool:
        """Whether fixtures that are wider than the test have threads of their own."""
        return bool(self._company.threads)

    def spent(self) -> bool:
        """Whether something was done, here or by fixtures that ended, that cannot be undone."""
        return bool(torchstate.traces() - self._company.traces)

    @contextlib.contextmanager
    def follow(self) -> Iterator[None]:
        """Have what is changed in a block belong to a fixture that is wider than the test."""
        settings, company = Settings.now(), Company.now()
        try:
            yield
        finally:
            self._settings = self._settings.follow(settings, Settings.now())
            self._company = self._company.follow(company, Company.now())

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        failure: BaseException | None = None
        try:
            # An item's parent has the item's chain of collectors but for itself.
            parent: Any = item.parent
            item.session._setupstate.teardown_exact(parent)
        except BaseException as error:
            failure = error
        self.strangers = self._company.strangers(self._asked_for)
        self.has_more_groups = self._company.has_more_groups()
        self.has_other_default_group = self._company.has_other_default_group()
        self.changes = (*self._settings.restore(), *faults.rearm())
        wider = len(item.session._setupstate.stack)
        with _keep_first(failure):
            result = yield
        self.ended_alone = len(item.session._setupstate.stack) == wider
        return result


@contextlib.contextmanager
def _keep_first(failure: BaseException | None) -> Iterator[None]:
    """Run the body, then raise the failure that came before it, together with its own."""
    try:
        yield
    except BaseException as error:
        if failure is None:
            raise
        raise BaseExceptionGroup("errors in teardown", [failure, error]) from None
    if failure is not None:
        raise failure
