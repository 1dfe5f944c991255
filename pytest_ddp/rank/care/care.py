"""Cleaning up after a test: restore what it changed, report what it leaked."""

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
    """A pytest plugin that compares the rank's state before and after each test.

    It compares after the teardown of the item itself and before that of module and session: their
    fixtures may keep what they changed.
    """

    def __init__(self, users_groups: Container[str]) -> None:
        """
        Args:
            users_groups: names of the process groups that user code has made.
        """
        self._users_groups = users_groups
        self.begin()

    def begin(self) -> None:
        """Take the current state as the one that the next test must return to."""
        faults.rearm()
        self._settings = Settings.now()
        self._company = Company.now()
        self.changes: tuple[str, ...] = ()
        self.strangers: tuple[Left, ...] = ()
        self.has_more_groups = False
        """The test left new process groups, its own or a library's (a device mesh's)."""
        self.has_other_default_group = False
        """The test left a default group that is neither an earlier one nor a wide fixture's."""
        self.ended_alone = False
        """No fixture that is wider than the test was torn down with it."""

    def more_stores(self) -> tuple[Left, ...]:
        """Stores that the test still holds."""
        return self._company.more_stores()

    def keeps_threads(self) -> bool:
        """Whether fixtures that are wider than the test run threads."""
        return bool(self._company.threads)

    def spent(self) -> bool:
        """Whether the test, or a fixture torn down with it, did what cannot be undone."""
        return bool(torchstate.traces() - self._company.traces)

    @contextlib.contextmanager
    def follow(self) -> Iterator[None]:
        """Attribute changes in the block to a fixture that is wider than the test."""
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
            # The parent is the last collector that stays set up: only the item is torn down.
            parent: Any = item.parent
            item.session._setupstate.teardown_exact(parent)
        except BaseException as error:
            failure = error
        self.strangers = self._company.strangers(self._users_groups)
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
    """Run the block, then raise the earlier failure, in a group with the block's own if any."""
    try:
        yield
    except BaseException as error:
        if failure is None:
            raise
        raise BaseExceptionGroup("errors in teardown", [failure, error]) from None
    if failure is not None:
        raise failure
