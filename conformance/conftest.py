"""The table that ``make conformance`` ends with."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ddp_conformance.registry import all_checks
from ddp_conformance.table import Verdict, Word, render, summary

PROPERTY = "conformance"
"""Name of the user property that says what a test decided: kind, subject, guarantee."""

WORLD_SIZE = re.compile(r"[\[-]ws(\d+)[\]-]")


class Table:
    """Collects verdicts from the reports, wherever the tests ran."""

    def __init__(self) -> None:
        self.verdicts: dict[str, list[Verdict]] = {"reference": [], "mutants": []}

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the verdict of a test's decisive phase."""
        kind, subject, guarantee = dict(report.user_properties).get(PROPERTY, (None, "", ""))
        decisive = report.when == "call" or report.outcome != "passed"
        found = WORLD_SIZE.search(report.nodeid)
        if kind is None or not decisive or found is None:
            return
        word, note = _word(report, kind)
        verdict = Verdict(subject, guarantee, int(found[1]), word, note)
        self.verdicts[kind].append(verdict)

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print what was collected."""
        starred = frozenset(c.id for c in all_checks() if c.guarantee.starred)
        titles = {"reference": "guarantees kept by the reference", "mutants": "mutants"}
        for kind, title in titles.items():
            verdicts = self.verdicts[kind]
            if verdicts:
                terminalreporter.section(title)
                for line in (*render(verdicts, starred), summary(verdicts)):
                    terminalreporter.line(line)


def _word(report: pytest.TestReport, kind: str) -> tuple[Word, str]:
    if hasattr(report, "wasxfail"):
        return Word.EXPECTED, str(report.wasxfail).splitlines()[0]
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        return Word.SKIPPED, reason.removeprefix("Skipped: ")
    if kind == "mutants":
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
        return ["reference", params["subject"].name, params["check"].id]
    if "mutant" in params:
        mutant = params["mutant"]
        return ["mutants", f"{mutant.subject.name} ({mutant.defect})", mutant.guarantee]
    return None
