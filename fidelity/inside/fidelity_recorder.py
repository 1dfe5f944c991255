"""A pytest plugin: put every test on ranks, where asked to, and write down its verdict.

Told by environment variables, because ranks and torch's test classes need to know as well.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from pathlib import Path

import pytest

RANKS = int(os.environ["FIDELITY_RANKS"])


def pytest_configure(config: pytest.Config) -> None:
    if not RANKS:
        # A suite with strict markers knows the same ones in both runs.
        config.addinivalue_line("markers", "ddp: not used in this run")
    if "RANK" not in os.environ:
        config.pluginmanager.register(_Recorder(Path(os.environ["FIDELITY_RECORD"])))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items if RANKS else ():
        item.add_marker(pytest.mark.ddp(world_size=RANKS))


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each rank's own: that ranks share one is documented, and tests of one process race in it."""
    return tmp_path_factory.mktemp(re.sub(r"\W", "_", request.node.name)[:30])


class _Recorder:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._phases: defaultdict[str, set[str]] = defaultdict(set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        xfail = "expected to fail and " if hasattr(report, "wasxfail") else ""
        if xfail or not report.passed:
            self._phases[report.nodeid].add(f"{report.when} {xfail}{report.outcome}")
        else:
            self._phases[report.nodeid] |= set()  # it has run, and may have passed

    def pytest_sessionfinish(self) -> None:
        verdicts = {name: ", ".join(sorted(said)) for name, said in self._phases.items()}
        self._file.write_text(
            json.dumps({name: said or "passed" for name, said in verdicts.items()})
        )
