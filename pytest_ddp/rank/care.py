"""Cleaning up after a test: restore what it changed, name what it left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_ddp.rank.surroundings import Company, Settings


class Care:
    """A pytest plugin that compares the rank before and after each test.

    The comparison comes after the teardown of the item itself and before that of
    module and session, whose fixtures may rightly hold on to what they changed.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Take the state of now as what the next test must return to."""
        self._settings = Settings.now()
        self._company = Company.now()
        self.changes: tuple[str, ...] = ()
        self.strangers: tuple[str, ...] = ()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        with self._follow():
            return (yield)

    @contextlib.contextmanager
    def _follow(self) -> Iterator[None]:
        settings, company = Settings.now(), Company.now()
        try:
            yield
        finally:
            self._settings = self._settings.follow(settings, Settings.now())
            self._company = self._company.follow(company, Company.now())

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        failure: BaseException | None = None
        try:
            # An item's parent has the item's chain of collectors but for itself.
            parent: Any = item.parent
            item.session._setupstate.teardown_exact(parent)
        except BaseException as error:
            failure = error
        self.strangers = self._company.strangers()
        self.changes = self._settings.restore()
        with _keep_first(failure):
            return (yield)


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
