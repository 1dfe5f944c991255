"""A pytest plugin: seeds and sizes of the programs, and a record of how each was judged."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from pytest_ddp.extending import on_rank
from pytest_ddp.extensions.worlds.plans import JUDGED


def pytest_generate_tests(metafunc):
    metafunc.parametrize("seed", range(int(os.environ["PARITY_SEEDS"])))


@pytest.fixture
def samples():
    """The number of samples in a batch, of all ranks together."""
    return int(os.environ["PARITY_SAMPLES"])


@pytest.fixture(autouse=True)
def _as_asked_for(seed):
    torch.set_num_threads(int(os.environ["PARITY_THREADS"]))
    torch.manual_seed(seed)


class Recorder:
    """Keeps the reports of each item, and writes one line of JSON for it."""

    def __init__(self, path):
        self._path = path
        self._failed = {}
        self._passed = set()

    def pytest_runtest_logreport(self, report):
        if report.failed:
            output = "\n".join(text for _, text in report.sections)
            self._failed[report.nodeid] = report.when, report.longreprtext, output
        elif report.when == "call" and report.passed:
            self._passed.add(report.nodeid)

    def pytest_sessionfinish(self, session):
        self._path.write_text("".join(json.dumps(self._row(i)) + "\n" for i in session.items))

    def _row(self, item):
        when, text, output = self._failed.get(item.nodeid, ("", "", ""))
        passed = "passed" if item.nodeid in self._passed else "did not run"
        judged = item.stash.get(JUDGED, None)
        stages = {} if judged is None else judged.stages
        wrong = [] if judged is None else judged.wrong
        first = [one for one in wrong if one.place[:2] == wrong[0].place[:2]]
        worst = max(first, key=lambda one: one.ratio, default=None)
        return {
            "program": item.originalname.removeprefix("test_"),
            "dtype": item.callspec.params.get("dtype", "float32"),
            "seed": item.callspec.params["seed"],
            "world": item.callspec.params["_ddp_world"],
            "outcome": {"": passed, "call": "failed"}.get(when, "error"),
            "ratios": {
                stage: max((one.ratio for one in found), default=0.0)
                for stage, found in stages.items()
            },
            "wrong": sorted(f"{one.place.name}: {one.place.tensor}" for one in first),
            "is_named": worst is not None and f"{worst.place.name}: {worst.place.tensor}" in text,
            "text": f"{text}\n{output}",
        }


def pytest_configure(config):
    if not on_rank(config):
        config.pluginmanager.register(Recorder(Path(os.environ["PARITY_RECORD"])))
