"""Replaces the controller on systems that cannot run ranks: ddp tests do not pass, others run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_ddp.session.neighbours import finish_test
from pytest_ddp.session.synthetic_reports import failed_without_ranks, skipped_without_ranks
from pytest_ddp.settings.marked_items import MARK, check_items, read_marks
from pytest_ddp.settings.options import Options, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


class WithoutRanks:
    """The hooks of the pytest process on a system that is not supported."""

    def __init__(
        self,
        options: Options,
        problem: str,
        warn: Callable[[pytest.Item, str], None],
    ) -> None:
        self._options = options
        self._skips = options.unsupported is Unsupported.SKIP
        self._problem = problem
        self._warn = warn

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self,
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        return check_items((yield), self._options, self._warn)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        read_marks(items, self._options)

    def pytest_report_collectionfinish(self, items: list[pytest.Item]) -> list[str]:
        if not any(MARK in item.stash for item in items):
            return []
        if self._skips:
            return [f"ddp: {self._problem}: ddp tests are skipped (--ddp-unsupported=skip)"]
        return [f"ddp: {self._problem}: ddp tests fail, --ddp-unsupported=skip skips them"]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        if MARK not in item.stash:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        make_reports = skipped_without_ranks if self._skips else failed_without_ranks
        reports = make_reports(item, self._problem)
        for report in finish_test(item, nextitem, reports):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True
