"""Notes which exceptions a test was expected to fail with, for a verdict on all ranks together."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from _pytest.skipping import xfailed_key

from pytest_ddp.protocol.messages import EXPECTS_OTHER


class ExpectedFailures:
    """A pytest plugin that marks reports of tests that passed although expected to fail."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport | None, pytest.TestReport | None]:
        report = yield
        # The mark that counts depends on conditions, and pytest alone knows it.
        expected = item.stash.get(xfailed_key, None)
        passed = report is not None and call.when == "call" and call.excinfo is None
        if passed and expected is not None and not _is_of_failures(expected.raises):
            vars(report)[EXPECTS_OTHER] = True
        return report


def _is_of_failures(raises: Any) -> bool:
    """Whether ``raises`` of an ``xfail`` mark has the exception of :func:`pytest.fail`."""
    if raises is None:
        return True
    failure = pytest.fail.Exception()
    if isinstance(raises, type | tuple):
        return isinstance(failure, raises)
    return bool(raises.matches(failure))  # pytest.RaisesExc and its like
