"""Subtests in a rank: pytest reports each one before the phase that it is a part of."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddp.wire.kept import Kept, is_subtest
from pytest_ddp.wire.protocol import SubtestReported


class Subtests:
    """Turns reports of subtests into messages."""

    def __init__(self, config: pytest.Config, kept: Kept) -> None:
        self._config = config
        self._kept = kept
        self._failed = False

    def begin(self) -> None:
        """Start over for the next test."""
        self._failed = False

    def take(self, report: Any, test: int) -> SubtestReported | None:
        """The message for this report; None if it is no subtest's."""
        if not is_subtest(report):
            if self._failed and report.when == "call":
                # pytest fails a test for its subtests in this hook, which the terminal reporter
                # calls to show the report. A rank has no such reporter.
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
