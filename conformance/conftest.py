"""The systems that parts belong to, and the kill matrix of the mutants."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ddp_conformance import Subject
from ddp_conformance.framework.mutants import Mutant
from ddp_conformance.frontend.report import label
from ddp_conformance.frontend.verdicts import SYSTEM

from conformance import entries, kill_matrix, preload
from conformance.systems import system_of
from pytest_ddp import Ddp
from pytest_ddp.rank.startup.preload import without_collector

preload.install()

PROPERTY = "mutant"
"""User property of a mutant's test, for junitxml: guarantee, defect, world size and name."""

WORLD_SIZE = re.compile(r"-ws(\d+)\]$")


class Matrix:
    """Collects the fates of mutants from the reports of all processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fates: dict[str, kill_matrix.Fates] = {}

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the fates of a mutant that died."""
        properties: dict[str, Any] = dict(report.user_properties)
        if report.when == "call" and report.passed and kill_matrix.FATES in properties:
            self._fates[properties[PROPERTY][-1]] = properties[kill_matrix.FATES]

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Write the matrix."""
        terminalreporter.line(self._write(self._path))

    def _write(self, path: Path) -> str:
        """Write the file; returns a sentence with the number of rows."""
        page = path.read_text(encoding="utf-8") if path.exists() else ""
        fates = kill_matrix.updated(page, self._fates)
        path.write_text(kill_matrix.render(fates), encoding="utf-8")
        missing = ", ".join(kill_matrix.missing(fates))
        rest = f"; no run so far for {missing}" if missing else ""
        return f"{path} is written, {len(self._fates)} of {len(fates)} rows from this run{rest}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Only if this file is read before the options are parsed; else there is no such option."""
    parser.addoption(
        kill_matrix.OPTION, metavar="FILE", help="write the kill matrix of the mutants"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the matrix; late, because this file may be read in the middle of collection."""
    target = config.getoption(kill_matrix.OPTION, None)
    if target is not None and not config.pluginmanager.has_plugin("conformance-matrix"):
        config.pluginmanager.register(Matrix(Path(target).absolute()), "conformance-matrix")


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
    """Note on each test its part's system, and which mutant it has, for the report and junitxml."""
    for item in items:
        subject = getattr(getattr(item, "callspec", None), "params", {}).get("subject")
        if isinstance(subject, Subject) and (system := system_of(item.nodeid, subject)):
            item.user_properties.append((SYSTEM, system))
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
