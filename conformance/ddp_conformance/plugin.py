"""A pytest plugin: its options, and the table and the report of the guarantees that tests check.

Every pytest session imports it, also those of suites that check no part. What only the checks need
is imported when the first one is collected, or when the first report of one arrives.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ddp_conformance.framework import seed

if TYPE_CHECKING:
    from ddp_conformance.frontend.report import Judged, Kill
    from ddp_conformance.frontend.verdicts import About

SUBJECT = "conformance subject"
"""User property: what a test decides."""

REPORT = "--ddp-conformance-report"

BRIEF = "--ddp-conformance-brief"

_STDLIB = sysconfig.get_path("stdlib")

_FRONTEND = "ddp_conformance.frontend.pytest_frontend"
"""The module that is imported where checks are collected; without it no test is a check."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add three options; the path of the report is relative to the current directory."""
    group = parser.getgroup("ddp-conformance", "guarantees of data-parallel training parts")
    group.addoption(
        REPORT, metavar="FILE", help="write all verdicts as JSON, and as HTML beside it"
    )
    group.addoption(
        BRIEF,
        action="store_true",
        help="show counts in place of pytest's dots, and warnings of other libraries in the report "
        "alone",
    )
    group.addoption(
        seed.OPTION,
        metavar="N",
        default=0,
        type=_seed,
        help="the seed of the ranks' delays and random states (default: 0)",
    )


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise pytest.UsageError(f"{seed.OPTION}={text}: give a number of 0 or more.")
    return int(text)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Take the seed in every process; collect verdicts in all of them, shown in one.

    After pytest's own plugins, one of which is the terminal's.
    """
    seed.use_seed(config.getoption("ddp_nemesis_seed"))
    target = config.getoption("ddp_conformance_report")
    if target is not None and not Path(target).absolute().parent.is_dir():
        raise pytest.UsageError(f"{REPORT}={target}: its folder does not exist; make it first.")
    known = config.pluginmanager.get_plugins()
    verdicts = next((plugin for plugin in known if isinstance(plugin, Verdicts)), None)
    if verdicts is None:
        verdicts = Verdicts()
        config.pluginmanager.register(verdicts, "conformance-verdicts")
    if config.getoption("ddp_conformance_brief"):
        verdicts.be_brief(config)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note in the report of a rank how its check ended."""
    made = yield
    if _FRONTEND not in sys.modules:
        return made
    from ddp_conformance.frontend import verdicts

    if call.excinfo is not None:
        if evidence := verdicts.ending(call.excinfo.value):
            made.user_properties.append((verdicts.EVIDENCE, evidence))
    elif call.when == "call" and (remark := verdicts.remark(item)):
        made.user_properties.append((verdicts.REMARK, remark))
    return made


class Verdicts:
    """Collects verdicts from the reports, wherever the tests ran; shows and writes them."""

    def __init__(self, option: str = REPORT) -> None:
        """``option`` is the option by which the user gets a report."""
        self.judged: dict[str, Judged] = {}
        self._kills: dict[str, Kill] = {}
        self._decided: dict[str, About] = {}
        self._not_bound: dict[str, About] = {}
        self._missing: set[str] = set()
        """Tests of checks and mutants, in any process, that have no verdict so far."""
        self._warnings: Counter[str] | None = None
        """Warnings of other libraries that the terminal does not show; None if it shows all."""
        self._option = option

    def be_brief(self, config: pytest.Config) -> None:
        """Keep other libraries' warnings for the report, and show counts in place of dots."""
        self._warnings = Counter()
        self._show_progress(config)

    def _show_progress(self, config: pytest.Config) -> None:
        manager = config.pluginmanager
        reporter: Any = manager.get_plugin("terminalreporter")
        elsewhere = reporter is None or hasattr(config, "workerinput")
        detailed = config.get_verbosity() > 0 or config.getoption("capture") in ("no", "tee-sys")
        if elsewhere or detailed or manager.has_plugin("conformance-progress"):
            return
        from ddp_conformance.frontend.progress import ProgressPlugin

        manager.register(ProgressPlugin(reporter, self._decided.get), "conformance-progress")

    # ---------------------------------------------------------------- collection

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None]:
        """Note what each test decides; deselect those that their subject's traits exclude.

        Runs after all other plugins, so that only the tests that they select count.
        """
        yield
        if _FRONTEND not in sys.modules:
            return
        from ddp_conformance.frontend import verdicts

        found = ((item.nodeid, verdicts.decided_by(item)) for item in items)
        self._decided |= {nodeid: about for nodeid, about in found if about is not None}
        if excluded := verdicts.not_bound(self._decided, items, config):
            config.hook.pytest_deselected(items=excluded)
            self._excuse({item.nodeid: self._decided[item.nodeid] for item in excluded})
            items[:] = [item for item in items if item.nodeid not in self._not_bound]
        self._missing = {item.nodeid for item in items if item.nodeid in self._decided}
        if items and len(self._missing) == len(items) and not config.getoption("collectonly"):
            self._show_progress(config)

    def _excuse(self, not_bound: Mapping[str, About]) -> None:
        from ddp_conformance.frontend.verdicts import excused

        self._not_bound |= not_bound
        self.judged |= {nodeid: excused(about) for nodeid, about in not_bound.items()}

    # ---------------------------------------------------------------- run

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a test's verdict; in a worker of pytest-xdist, pass on what it is about."""
        about = self._decided.get(report.nodeid)
        properties: dict[str, Any] = dict(report.user_properties)
        if about is not None and SUBJECT not in properties:
            # A rank that died, or was never started, has reported no properties.
            report.user_properties.append((SUBJECT, about))
        about = about or properties.get(SUBJECT)
        if about is None or (report.when != "call" and report.passed):
            return
        from ddp_conformance.frontend import verdicts

        if "mutant" in about:
            self._kills[report.nodeid] = verdicts.kill(report, about)
        else:
            self.judged[report.nodeid] = verdicts.judged(report, about)

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage) -> None:
        """Keep a warning of another library, if the terminal does not show it."""
        file = warning_message.filename
        if self._warnings is not None and _is_foreign(file):
            category = warning_message.category.__name__
            text = f"{file}:{warning_message.lineno}: {category}: {warning_message.message}"
            self._warnings[text] += 1

    # ---------------------------------------------------------------- end

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker of pytest-xdist has deselected, and what its tests decide."""
        found = getattr(node, "workeroutput", {}).get(SUBJECT)
        if found is not None:
            self._excuse(found["not bound"])
            self._missing |= set(found["selected"])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None]:
        """Have pytest leave out the warnings that are kept for the report."""
        if self._warnings:
            shown = terminalreporter.stats.pop("warnings", [])
            if own := [one for one in shown if not _is_foreign((one.fslocation or ("",))[0])]:
                terminalreporter.stats["warnings"] = own
        yield

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """Write the report, and show the screen below all that pytest reports."""
        config = session.config
        if self._decided and hasattr(config, "workeroutput"):
            found = {"not bound": self._not_bound, "selected": sorted(self._missing)}
            config.workeroutput[SUBJECT] = found
        yield
        reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
        target = config.getoption("ddp_conformance_report", None)
        found_any = self.judged or self._kills or (target is not None)
        elsewhere = reporter is None or hasattr(config, "workerinput")
        if elsewhere or not found_any or config.getoption("collectonly"):
            return
        from ddp_conformance.frontend import ending

        ending.end(
            config,
            reporter,
            judged=list(self.judged.values()),
            kills=list(self._kills.values()),
            decided={*self.judged, *self._kills},
            missing=len(self._missing - self.judged.keys() - self._kills.keys()),
            exit_code=int(session.exitstatus),
            warnings=self._warnings or {},
            option=self._option,
        )


def _is_foreign(file: str) -> bool:
    """Whether a file is one of an installed library."""
    path = Path(file)
    installed = not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
    return installed or path.is_relative_to(_STDLIB) or file.startswith("<frozen ")
