"""The table of mutants, and the kill matrix that is made of it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ddp_conformance.frame.mutants import Mutant
from ddp_conformance.front.report import label
from ddp_conformance.front.table import Verdict, Word, render, summary

from conformance import entries, kill_matrix, preload
from pytest_ddp import Ddp
from pytest_ddp.rank.birth.preload import without_collector

preload.install()

PROPERTY = "mutant"
"""Name of the user property that says where a test's verdict belongs: block, row, world size."""

TITLE = "mutants killed by their own guarantee"

WORLD_SIZE = re.compile(r"-ws(\d+)\]$")


class Mutants:
    """Collects verdicts from the reports, wherever the tests ran."""

    def __init__(self, matrix: Path | None) -> None:
        self._matrix = matrix
        self._verdicts: list[Verdict] = []
        self._fates: dict[str, kill_matrix.Fates] = {}

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the verdict of a test's decisive phase."""
        properties: dict[str, Any] = dict(report.user_properties)
        decisive = report.when == "call" or report.outcome != "passed"
        if PROPERTY not in properties or not decisive:
            return
        block, row, world_size, name = properties[PROPERTY]
        word = Word.KILLED if report.passed else Word.SURVIVED
        self._verdicts.append(Verdict(block, row, world_size, word, seconds=report.duration))
        if report.passed and kill_matrix.FATES in properties:
            self._fates[name] = properties[kill_matrix.FATES]

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print what was collected, and write the matrix if it was asked for."""
        if self._verdicts:
            terminalreporter.section(TITLE)
            for line in (*render(self._verdicts), summary(self._verdicts)):
                terminalreporter.line(line)
        if self._matrix is not None:
            terminalreporter.line(self._write_matrix(self._matrix))

    def _write_matrix(self, path: Path) -> str:
        """What became of it, in a sentence."""
        page = path.read_text(encoding="utf-8") if path.exists() else ""
        fates = kill_matrix.updated(page, self._fates)
        path.write_text(kill_matrix.render(fates), encoding="utf-8")
        missing = ", ".join(kill_matrix.missing(fates))
        rest = f"; no run so far for {missing}" if missing else ""
        return f"{path} is written, {len(self._fates)} of {len(fates)} rows from this run{rest}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where this file is read before options are; elsewhere there is no matrix to be had."""
    parser.addoption(
        kill_matrix.OPTION, metavar="FILE", help="write the kill matrix of the mutants"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the table; late, because this file may be read in the middle of collection."""
    if not config.pluginmanager.has_plugin("conformance-mutants"):
        target = config.getoption(kill_matrix.OPTION, None)
        matrix = None if target is None else Path(target).absolute()
        config.pluginmanager.register(Mutants(matrix), "conformance-mutants")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests that share a server go to one process."""
    from conformance import scheduling

    return scheduling.make(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collection is imports, in each process of xdist."""
    with without_collector():
        return (yield)


@pytest.fixture
def demand_death(
    ddp: Ddp, record_property: Callable[[str, object], None], pytestconfig: pytest.Config
) -> Callable[[Mutant], None]:
    """:func:`entries.demand_death`; a run that makes the kill matrix notes all fates."""
    matrix = bool(pytestconfig.getoption(kill_matrix.OPTION, None))
    return functools.partial(entries.demand_death, ddp, record_property, matrix)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say on each test what it decides, for the table and for junitxml."""
    for item in items:
        decided = _decides(item)
        if decided is not None and all(name != PROPERTY for name, _ in item.user_properties):
            item.user_properties.append((PROPERTY, decided))


def _decides(item: pytest.Item) -> list[str | int] | None:
    params = getattr(getattr(item, "callspec", None), "params", {})
    world_size = WORLD_SIZE.search(item.nodeid)
    if "mutant" not in params or world_size is None:
        return None
    mutant = params["mutant"]
    name = mutant.subject.name
    return [label(mutant.guarantee), f"{name}: {mutant.defect}", int(world_size[1]), name]
