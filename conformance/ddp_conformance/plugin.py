"""A pytest plugin, for ``-p ddp_conformance.plugin``: options, table and report of a run.

Checks need none of it; without it, verdicts are those of the tests alone.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddp_conformance.frame import nemesis
from ddp_conformance.frame.registry import remarked
from ddp_conformance.frame.verdict import GuaranteeError, UndecidedError
from ddp_conformance.front import report
from ddp_conformance.front.pytest_frontend import BoundCheck, KeptError
from ddp_conformance.front.report import Judged
from ddp_conformance.front.table import Word, render, summary

SUBJECT = "conformance subject"
"""User property: what a test decides, as a mapping with the first fields of a Judged."""

EVIDENCE = "conformance evidence"
"""User property: how the check ended, in a word, and the lines that prove it."""

REMARK = "conformance remark"
"""User property: what a check that passed could not look at."""

REPORT = "--ddp-conformance-report"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Two options; the report's path is told as it is given, from the current directory."""
    group = parser.getgroup("ddp-conformance", "guarantees of data-parallel training parts")
    group.addoption(REPORT, metavar="FILE", help="write all verdicts as JSON")
    group.addoption(
        nemesis.OPTION,
        metavar="N",
        default=0,
        type=_seed,
        help="what delays and random states of the ranks follow from (default: 0)",
    )


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise pytest.UsageError(f"{nemesis.OPTION}={text}: give a number of 0 or more.")
    return int(text)


def pytest_configure(config: pytest.Config) -> None:
    """Take the seed in every process; collect verdicts in all of them, told in one."""
    nemesis.use_seed(config.getoption("ddp_nemesis_seed"))
    target = config.getoption("ddp_conformance_report")
    if target is not None and not Path(target).absolute().parent.is_dir():
        raise pytest.UsageError(f"{REPORT}={target}: its folder does not exist; make it first.")
    if not any(isinstance(known, Verdicts) for known in config.pluginmanager.get_plugins()):
        config.pluginmanager.register(Verdicts(), "conformance-verdicts")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say in the report of a rank how its check ended."""
    made = yield
    error = call.excinfo.value if call.excinfo is not None else None
    # An expected failure is an xfail that was raised for the violation. Exactly these types:
    # what a user's code derives from them is no verdict of ours.
    for one in (error, getattr(error, "__context__", None)):
        if type(one) in _ENDINGS:
            evidence = [_ENDINGS[type(one)], *getattr(one, "evidence", ())]
            made.user_properties.append((EVIDENCE, evidence))
            break
    if error is None and call.when == "call" and _decided_by(item) and remarked():
        made.user_properties.append((REMARK, remarked()))
    return made


_ENDINGS: dict[type, str] = {
    GuaranteeError: "violated",
    UndecidedError: "undecided",
    KeptError: "kept",
}


class Verdicts:
    """Collects verdicts from the reports, wherever the tests ran; prints and writes them."""

    def __init__(self) -> None:
        self.judged: dict[str, Judged] = {}
        self._decided: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note what each test decides."""
        self._decided = {
            item.nodeid: decided for item in items if (decided := _decided_by(item)) is not None
        }

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a test's verdict; in a worker of pytest-xdist, pass on what it is about."""
        about = self._decided.get(report.nodeid)
        properties = dict(report.user_properties)
        if about is not None and SUBJECT not in properties:
            # A rank that died, or was never started, reported no properties.
            report.user_properties.append((SUBJECT, about))
        about = about or properties.get(SUBJECT)  # type: ignore[assignment]
        if about is not None and (report.when == "call" or not report.passed):
            self.judged[report.nodeid] = _judged(report, about)

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        """Print the table, and write the report."""
        judged = list(self.judged.values())
        if judged:
            cells = [one.cell() for one in judged]
            terminalreporter.section("guarantees")
            for line in (*render(cells), summary(cells)):
                terminalreporter.line(line)
        target = config.getoption("ddp_conformance_report", None)
        if target is not None:
            backend = config.getoption("ddp_backend", None) or "auto"
            report.write(Path(target), report.document(judged, nemesis.seed(), backend))


def _decided_by(item: pytest.Item) -> dict[str, Any] | None:
    params = getattr(getattr(item, "callspec", None), "params", {})
    check, subject = params.get("check"), params.get("subject")
    if not isinstance(check, BoundCheck) or subject is None:
        return None
    return {
        "subject": subject.name,
        "kind": subject.kind,
        "guarantee": check.id,
        "remark": check.check.remark(subject),
        "world_size": params.get("_ddp_world_size") or next(_world_sizes(item)),
    }


def _world_sizes(item: pytest.Item) -> Iterator[int]:
    for mark in item.iter_markers("ddp"):
        if "world_size" in mark.kwargs:
            yield mark.kwargs["world_size"]
    yield 1


def _judged(report: pytest.TestReport, about: dict[str, Any]) -> Judged:
    evidence: Any = dict(report.user_properties).get(EVIDENCE, [""])
    ended, *witness = map(str, evidence)
    word, reason = _word(report, ended)
    about = dict(about)
    remarks = (about.pop("remark"), dict(report.user_properties).get(REMARK, ""))
    reason = "; ".join(map(str, filter(None, remarks))) if word is Word.PASSED else reason
    if word is Word.UNKNOWN and witness:
        reason = witness[0]
    shown = tuple(witness) if word in (Word.FAILED, Word.EXPECTED) else ()
    return Judged(**about, word=word, reason=reason, witness=shown, seconds=report.duration)


def _word(report: pytest.TestReport, ended: str) -> tuple[Word, str]:
    if hasattr(report, "wasxfail"):
        return Word.EXPECTED, str(report.wasxfail).removeprefix("reason: ").splitlines()[0]
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        return Word.SKIPPED, reason.removeprefix("Skipped: ")
    if report.passed:
        return Word.PASSED, ""
    if ended == "violated":
        return Word.FAILED, ""
    return (Word.FAILED if ended == "kept" else Word.UNKNOWN), _first_line(report)


def _first_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    return text.strip().splitlines()[0] if text.strip() else "no reason was told"
