"""The table that ``make conformance`` ends with."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ddp_conformance.registry import all_checks
from ddp_conformance.table import Verdict, Word, render, summary

PROPERTY = "conformance"
"""Name of the user property that says where a test's verdict belongs: table, block, row."""

WORLD_SIZE = re.compile(r"[\[-]ws(\d+)[\]-]")


REFERENCE = "guarantees kept by the reference"
MUTANTS = "mutants killed by their own guarantee"


class Table:
    """Collects verdicts from the reports, wherever the tests ran."""

    def __init__(self) -> None:
        self.verdicts: dict[str, list[Verdict]] = {title: [] for title in (REFERENCE, MUTANTS)}

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the verdict of a test's decisive phase."""
        title, block, row = dict(report.user_properties).get(PROPERTY, (None, "", ""))
        decisive = report.when == "call" or report.outcome != "passed"
        world_size = WORLD_SIZE.search(report.nodeid)
        if title is None or not decisive or world_size is None:
            return
        word, note = _word(report, title)
        self.verdicts[title].append(Verdict(block, row, int(world_size[1]), word, note))

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print what was collected."""
        for title, verdicts in self.verdicts.items():
            if verdicts:
                terminalreporter.section(title)
                for line in (*render(verdicts), summary(verdicts)):
                    terminalreporter.line(line)


def _word(report: pytest.TestReport, title: str) -> tuple[Word, str]:
    if hasattr(report, "wasxfail"):
        return Word.EXPECTED, str(report.wasxfail).splitlines()[0]
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        return Word.SKIPPED, reason.removeprefix("Skipped: ")
    if title == MUTANTS:
        return (Word.KILLED if report.passed else Word.SURVIVED), ""
    return (Word.PASSED if report.passed else Word.FAILED), ""


def pytest_configure(config: pytest.Config) -> None:
    """Register the table; late, because this file may be read in the middle of collection."""
    if not config.pluginmanager.has_plugin("conformance-table"):
        config.pluginmanager.register(Table(), "conformance-table")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say on each test what it decides, for the table and for junitxml."""
    for item in items:
        params = getattr(item, "callspec", None)
        decided = _decides({} if params is None else params.params)
        if decided is not None and all(name != PROPERTY for name, _ in item.user_properties):
            item.user_properties.append((PROPERTY, decided))


def _decides(params: dict[str, Any]) -> list[str] | None:
    if "subject" in params and "check" in params:
        return [REFERENCE, params["subject"].name, _label(params["check"].id)]
    if "mutant" in params:
        mutant = params["mutant"]
        return [MUTANTS, _label(mutant.guarantee), f"{mutant.subject.name}: {mutant.defect}"]
    return None


def _label(guarantee_id: str) -> str:
    starred = any(c.guarantee.starred for c in all_checks() if c.id == guarantee_id)
    return f"{guarantee_id} *" if starred else guarantee_id
