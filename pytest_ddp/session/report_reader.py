"""Turns serialized reports of ranks back into pytest's reports."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pytest_ddp.protocol.buffered_reports import is_empty
from pytest_ddp.protocol.host_messages import Json
from pytest_ddp.protocol.messages import PhaseReported, SubtestReported

_LEFT_BY_READING = ("_report_type", "_subtest.context")
"""Unused entries of the JSON, which pytest makes attributes of the report."""


class Reader:
    """Deserializes reports with the hooks of pytest and its plugins.

    A test may have thousands of subtests, nearly all without output; those are copies of the first.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._test = -1
        self._passed: Any = None
        """The report of a subtest of this test that passed without output."""

    def phase(self, message: PhaseReported) -> pytest.TestReport | None:
        """The report of a phase; None if no plugin could read it."""
        return self._read(message.report)

    def subtest(self, message: SubtestReported) -> pytest.TestReport | None:
        """The report of a subtest; None if no plugin could read it."""
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
        # Set last, since pytest quotes the values again when it reads them.
        object.__setattr__(report.context, "msg", message.message)
        object.__setattr__(report.context, "kwargs", message.values)
        if message.report is not None and is_empty(report):
            self._test, self._passed = message.test, report
        made: pytest.TestReport = report
        return made

    def _read(self, data: Json) -> pytest.TestReport | None:
        hook = self._config.hook
        report: Any = hook.pytest_report_from_serializable(config=self._config, data=data)
        return report if isinstance(report, pytest.TestReport) else None
