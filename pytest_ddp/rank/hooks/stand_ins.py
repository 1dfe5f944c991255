"""A terminal reporter in a rank, for test code that looks for one."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from _pytest._io import TerminalWriter
from _pytest.junitxml import _check_record_param_type, xml_key
from _pytest.terminal import TerminalReporter

from pytest_ddp.protocol.buffered_reports import BufferedReports, is_subtest
from pytest_ddp.protocol.messages import SubtestReported, XmlNoted
from pytest_ddp.rank.startup.pytest_config import JUNIT_FAMILY

_NAME = "terminalreporter"


def reporter_stand_in(config: pytest.Config) -> None:
    """Register a reporter under the name of pytest's.

    Call it only after installed plugins are configured: some replace the reporter by their own, and
    do without if none exists, as in a worker of pytest-xdist. With ``-p no:terminal`` there is none
    in the pytest process either.
    """
    if config.pluginmanager.is_blocked("terminal"):
        return
    output: Any = _Output()
    config.pluginmanager.register(_Reporter(config, output), _NAME)


class _Reporter(TerminalReporter):  # type: ignore[misc] # final for type checkers only
    """Writes to the rank's output; it gets no reports, and prints none."""

    def __dir__(self) -> Iterable[str]:
        # pluggy looks for hooks by dir(): hide them.
        return [name for name in super().__dir__() if not name.startswith("pytest_")]


class _Output:
    """The current standard output, which capturing replaces."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)


# ------------------------------------------------------------------
# Fixtures of ``--junitxml`` in a rank, whose pytest writes no XML file.

_Send = Callable[[XmlNoted], None]


def junit_stand_in(config: pytest.Config, send: _Send) -> None:
    """Make pytest's fixtures warn as in a process that writes the file, and send their values."""
    family = config.stash[JUNIT_FAMILY]
    if family is not None:
        xml: Any = _Xml(family, send)
        config.stash[xml_key] = xml
        # Registered, as pytest unregisters it at the end of its session.
        config.pluginmanager.register(xml)


class _Xml:
    def __init__(self, family: str, send: _Send) -> None:
        self.family = family
        self._send = send

    def add_global_property(self, name: str, value: object) -> None:
        __tracebackhide__ = True
        _check_record_param_type("name", name)
        self._send(XmlNoted(None, name, str(value)))

    def node_reporter(self, nodeid: object) -> _NodeReporter:
        return _NodeReporter(str(nodeid), self._send)


class _NodeReporter:
    def __init__(self, nodeid: str, send: _Send) -> None:
        self._nodeid = nodeid
        self._send = send

    def add_attribute(self, name: str, value: object) -> None:
        self._send(XmlNoted(self._nodeid, str(name), str(value)))


# ------------------------------------------------------------------
# ``--setup-show`` inside a rank, which has no terminal.


class SetupShow:
    """Collects what ``--setup-show`` prints, for the controller to print."""

    def __init__(self, config: pytest.Config) -> None:
        self._stream = io.StringIO()
        writer = TerminalWriter(self._stream)
        if config.getoption("setupshow", False):
            # pytest would get the writer from the terminal reporter, which ranks do not have.
            quiet: Any = config
            quiet.get_terminal_writer = lambda: writer

    def take(self) -> str:
        """The text since the last call."""
        text = self._stream.getvalue()
        self._stream.seek(0)
        self._stream.truncate()
        return text


# ------------------------------------------------------------------
# Subtests in a rank: pytest reports each one before the phase that it is a part of.


class Subtests:
    """Turns reports of subtests into messages."""

    def __init__(self, config: pytest.Config, buffered: BufferedReports) -> None:
        self._config = config
        self._buffered = buffered
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
        if not self._buffered.take_subtest(report):
            hook = self._config.hook
            data = hook.pytest_report_to_serializable(config=self._config, report=report)
        context, times = report.context, (report.start, report.stop, report.duration)
        values = {name: str(value) for name, value in context.kwargs.items()}
        return SubtestReported(test, context.msg, values, data, *times)
