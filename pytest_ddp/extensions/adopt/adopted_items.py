"""Decides which tests without a mark become ddp tests, according to the options."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_ddp.extensions.adopt import distributedtest, everywhere, testcase
from pytest_ddp.extensions.adopt.options import Adopt, AdoptOptions
from pytest_ddp.settings.mark import DdpTest


class Taking:
    """A pytest plugin of the pytest process and of ranks."""

    def __init__(self, options: AdoptOptions) -> None:
        self._takes_harnesses = Adopt.TESTCASE in options.adopt
        self._everywhere = options.everywhere

    def pytest_ddp_make_test(self, item: pytest.Item) -> DdpTest | None:
        found = None
        if self._takes_harnesses:
            found = testcase.as_ddp_test(item) or distributedtest.as_ddp_test(item)
        if found is None and self._everywhere is not None:
            found = everywhere.as_ddp_test(item, self._everywhere)
        return found

    def pytest_ddp_world_sizes(self, metafunc: pytest.Metafunc) -> Sequence[int] | None:
        return distributedtest.sizes_in_turn(metafunc) if self._takes_harnesses else None
