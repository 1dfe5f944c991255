"""Reports of ranks, made pytest's own again."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pytest_ddp.wire.hosting import Json
from pytest_ddp.wire.kept import is_wordless
from pytest_ddp.wire.protocol import PhaseReported, SubtestReported

_LEFT_BY_READING = ("_report_type", "_subtest.context")
"""Of JSON that nobody had a use for, which pytest makes attributes of a report."""


class Reader:
    """Has pytest and its plugins read what their likes have written in a rank.

    A test may have thousands of subtests, of which nearly all say nothing; those are copies.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._test = -1
        self._passed: Any = None
        """A subtest of this test that passed without a word."""

    def phase(self, message: PhaseReported) -> pytest.TestReport | None:
        """The report of a phase; None where no plugin makes one of it."""
        return self._read(message.report)

    def subtest(self, message: SubtestReported) -> pytest.TestReport | None:
        """The report of a subtest; None where no plugin makes one of it."""
        report: Any
        if message.report is None and message.test == self._test:
            report = object.__new__(type(self._passed))
            vars(report).update(vars(self._passed))
            report.context = copy.copy(report.context)
            report.start, report.stop = message.start, message.stop
            report.duration = message.duration
        else:
            report = None if message.report is None else self._read(message.report)
            if report is None:
                return None
        for name in _LEFT_BY_READING:
            vars(report).pop(name, None)
        # pytest quotes the values again when it reads them.
        object.__setattr__(report.context, "msg", message.message)
        object.__setattr__(report.context, "kwargs", message.values)
        if message.report is not None and is_wordless(report):
            self._test, self._passed = message.test, report
        made: pytest.TestReport = report
        return made

    def _read(self, data: Json) -> pytest.TestReport | None:
        hook = self._config.hook
        report: Any = hook.pytest_report_from_serializable(config=self._config, data=data)
        return report if isinstance(report, pytest.TestReport) else None
