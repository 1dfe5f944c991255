"""Subtests in a rank: pytest reports each by itself, before the phase that they are part of."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddp.wire.kept import Kept, is_subtest
from pytest_ddp.wire.protocol import SubtestReported


class Subtests:
    """What is told of a test's subtests."""

    def __init__(self, config: pytest.Config, kept: Kept) -> None:
        self._config = config
        self._kept = kept
        self._failed = False

    def begin(self) -> None:
        """Begin with the subtests of the next test."""
        self._failed = False

    def take(self, report: Any, test: int) -> SubtestReported | None:
        """What to tell of this report; None if it is of no subtest."""
        if not is_subtest(report):
            if self._failed and report.when == "call":
                # Where pytest fails a test for its subtests, it does so when the terminal asks
                # how to show it, which no rank has.
                hook = self._config.hook
                hook.pytest_report_teststatus(report=report, config=self._config)
            return None
        self._failed |= report.failed
        data = None
        if not self._kept.take_subtest(report):
            hook = self._config.hook
            data = hook.pytest_report_to_serializable(config=self._config, report=report)
        context, times = report.context, (report.start, report.stop, report.duration)
        values = {name: str(value) for name, value in context.kwargs.items()}
        return SubtestReported(test, context.msg, values, data, *times)
