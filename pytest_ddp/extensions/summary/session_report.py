"""Follows a session in its main process, and writes the page of ``--ddp-report`` at its end."""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from _pytest._io import TerminalWriter

from pytest_ddp.extensions.summary.markdown import shortened
from pytest_ddp.extensions.summary.options import RAN_ON, REPORT
from pytest_ddp.extensions.summary.report_page import FailureRow, SessionFacts, TestRow, page
from pytest_ddp.session.supervisor import INTERRUPTED
from pytest_ddp.settings.options import OPTIONS
from pytest_ddp.system.stdlib import os, time
from pytest_ddp.system.whole_files import write_whole
from pytest_ddp.trace.files import embedded_picture
from pytest_ddp.verdict.codes import pointed_code
from pytest_ddp.verdict.notices import PROBLEMS
from pytest_ddp.verdict.paint import paint

_LONGEST = 100_000
"""Characters of captured output of one test and stream; beyond, its middle is left out."""
_LARGEST_PICTURE = 4 << 20
"""Characters of a picture; a larger one stays in the file that the failure's text names."""
_NOT_REPEATED = {"ddp_report", "ddp_diagnosis"}
"""Options that write files of the session, which a single test must not overwrite."""


class SessionReport:
    """A plugin of the main process, under pytest-xdist too."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config = config
        self._path = path
        self._began = time.time()
        self._tests: dict[str, list[pytest.TestReport]] = {}
        """Reports by node id, of the last attempt at each test."""
        self._uncollected: list[pytest.CollectReport] = []
        self._problem = ""
        """Why no page could be written; empty if it was."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Write where the page will be, so that a mistake is found before the first test."""
        probe = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")
        try:
            write_whole(probe, "")
            probe.unlink()
        except OSError as error:
            raise pytest.UsageError(
                f"{REPORT.flag}={self._path}: no file can be written there: {error.strerror}. Name "
                "another one."
            ) from None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._uncollected.append(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        of_test = self._tests.setdefault(report.nodeid, [])
        if any(before.outcome not in ("passed", "failed", "skipped") for before in of_test):
            of_test.clear()  # pytest-rerunfailures runs it again
        of_test.append(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        # After the core's, which colours the failures of ddp tests, for the terminal too.
        paint(report for of_test in self._tests.values() for report in of_test)
        try:
            write_whole(self._path, page(self._facts(session)))
        except OSError as error:
            self._problem = str(error)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._problem:
            text = f"{REPORT.flag}={self._path}: the page was not written: {self._problem}"
            terminalreporter.line(text, red=True)
        else:
            terminalreporter.write_sep("-", f"report of ddp tests: {self._path}")

    # ------------------------------------------------------------------ what is on the page

    def _facts(self, session: pytest.Session) -> SessionFacts:
        stopped: tuple[object, ...] = (session.shouldfail, session.shouldstop)
        return SessionFacts(
            began=datetime.fromtimestamp(self._began).astimezone().isoformat(" ", "seconds"),
            seconds=time.time() - self._began,
            directory=str(self._config.invocation_params.dir),
            command=shlex.join([*_program(), *map(str, self._config.invocation_params.args)]),
            exit_code=int(session.exitstatus),
            interrupted=session.exitstatus == pytest.ExitCode.INTERRUPTED,
            stopped=next((reason for reason in stopped if isinstance(reason, str)), ""),
            not_run=max(session.testscollected - len(self._tests), 0),
            tests=[self._row(nodeid, reports) for nodeid, reports in self._tests.items()],
            failures=[*self._uncollected_files(), *self._failures()],
            problems=self._config.stash.get(PROBLEMS, ()),
            interrupted_ranks=self._config.stash.get(INTERRUPTED, ""),
            docs_url=self._config.stash[OPTIONS].docs_url,
        )

    def _row(self, nodeid: str, reports: Sequence[pytest.TestReport]) -> TestRow:
        noted = [vars(report)[RAN_ON] for report in reports if RAN_ON in vars(report)]
        world_size, backend = noted[0] if noted else (0, "")
        words = [word for report in reports if (word := _word(report))]
        reasons = [reason for report in reports if (reason := _reason(report))]
        return TestRow(
            nodeid=nodeid,
            is_ddp=bool(noted),
            words=_words(words),
            reason=reasons[0] if reasons else "",
            world_size=int(world_size),
            backend=str(backend),
            seconds=sum(report.duration for report in reports),
        )

    def _uncollected_files(self) -> Iterator[FailureRow]:
        for report in self._uncollected:
            text = _shown(self._config, report, ())
            yield FailureRow(
                report.nodeid, "collection", text, "", "", self._command(report.nodeid)
            )

    def _failures(self) -> Iterator[FailureRow]:
        first = True
        for nodeid, reports in self._tests.items():
            later = [report for report in reports if report.when == "teardown" and report.passed]
            for report in reports:
                if not report.failed:
                    continue
                picture = self._picture(report, first=first)
                first = first and not picture
                yield FailureRow(
                    nodeid,
                    str(report.when),
                    _shown(self._config, report, later),
                    pointed_code(report.longreprtext) if "ddp" in report.keywords else "",
                    picture,
                    self._command(nodeid),
                )

    def _picture(self, report: pytest.TestReport, *, first: bool) -> str:
        directory = self._config.stash[OPTIONS].trace
        sections = getattr(report.longrepr, "sections", ())
        # Without this section, a file of this name is of another session.
        if directory is None or not any(title == "Picture" for title, *_ in sections):
            return ""
        picture = embedded_picture(directory, report.nodeid, first=first)
        return picture if len(picture) <= _LARGEST_PICTURE else ""

    def _command(self, nodeid: str) -> str:
        option = self._config.option
        if getattr(option, "dist", "") == "loadgroup" and nodeid.rfind("@") > nodeid.rfind("]"):
            nodeid = nodeid.rpartition("@")[0]  # pytest-xdist's name of the group
        file, colons, names = nodeid.partition("::")
        path = os.path.relpath(self._config.rootpath / file, self._config.invocation_params.dir)
        arguments = [*_program(), f"{path}{colons}{names}"]
        if option.inifilename:
            arguments += ["-c", str(option.inifilename)]
        if option.rootdir:
            arguments.append(f"--rootdir={option.rootdir}")
        arguments += [word for name in option.plugins or () for word in ("-p", str(name))]
        arguments += [word for value in option.override_ini or () for word in ("-o", str(value))]
        return shlex.join([*arguments, *self._ddp_options()])

    def _ddp_options(self) -> Iterator[str]:
        """Options of the command line that may change a verdict: each is an ini setting, too."""
        for name, value in vars(self._config.option).items():
            if not name.startswith("ddp_") or value is None or name in _NOT_REPEATED:
                continue
            try:
                self._config.getini(name)
            except (ValueError, KeyError):
                continue
            flag = f"--{name.replace('_', '-')}"
            yield flag if value is True else f"{flag}={value}"


def _program() -> list[str]:
    by_module = Path(sys.argv[0]).name == "__main__.py"
    return ["python", "-m", "pytest"] if by_module else ["pytest"]


def _words(words: Sequence[str]) -> tuple[str, ...]:
    """The verdict of a test, by those of all phases and subtests; the call comes after its
    subtests."""
    bad = [word for word in words if word in ("failed", "error")]
    return tuple(dict.fromkeys(bad)) or (words[-1] if words else "did not end",)


def _word(report: pytest.TestReport) -> str:
    """What a phase contributes to the verdict; empty for one that passed beside the call."""
    if report.failed:
        return "error" if report.when in ("setup", "teardown") else "failed"
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    if report.skipped:
        return "skipped"
    return "passed" if report.when == "call" and report.passed else ""


def _reason(report: pytest.TestReport) -> str:
    """One line on a phase that did not just pass."""
    if report.failed:
        properties: Mapping[str, object] = dict(report.user_properties)
        crash = getattr(report.longrepr, "reprcrash", None)
        text = properties.get("ddp.verdict") or getattr(crash, "message", report.longrepr)
        return str(text).partition("\n")[0]
    if hasattr(report, "wasxfail"):
        return str(report.wasxfail).removeprefix("reason: ")
    if report.skipped and isinstance(report.longrepr, tuple | list):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return ""


def _shown(
    config: pytest.Config,
    report: pytest.TestReport | pytest.CollectReport,
    later: Sequence[pytest.TestReport],
) -> str:
    """What the terminal shows of a failure, with the colours of a terminal.

    Args:
        config: has ``--show-capture``.
        report: the failure.
        later: reports after it, whose output is shown with it.
    """
    file = io.StringIO()
    writer = TerminalWriter(file)
    writer.hasmarkup = True
    writer.fullwidth = 100
    report.toterminal(writer)
    wanted = getattr(config.option, "showcapture", "all")  # of the terminal, which may be left out
    if wanted == "no":
        return file.getvalue()
    for title, content in [*report.sections, *(one for each in later for one in each.sections)]:
        if wanted == "all" or wanted in title:
            writer.sep("-", title)
            writer.line(shortened(content.removesuffix("\n"), _LONGEST))
    return file.getvalue()
