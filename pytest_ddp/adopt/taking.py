"""Which tests become ddp tests without a mark of their own, by what the session asks for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_ddp.adopt import distributedtest, everywhere, testcase
from pytest_ddp.asked.options import Adopt, Options


def adoption(options: Options) -> Callable[[pytest.Item], None]:
    """What marks such tests.

    It raises a :class:`pytest.UsageError` for one that is meant and cannot be a ddp test.
    """

    def adopt(item: pytest.Item) -> None:
        if Adopt.TESTCASE in options.adopt:
            testcase.mark(item)
            distributedtest.mark(item)
        if options.everywhere is not None:
            everywhere.mark(item, options.everywhere)

    return adopt
