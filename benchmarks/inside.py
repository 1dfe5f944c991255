"""A pytest plugin that measures the warm part of a session, in controller and ranks alike.

Given to pytest by :mod:`benchmarks.profiles`; pytest-ddp hands it on to its ranks.
"""

from __future__ import annotations

import cProfile
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

FIRST, LAST = 20, 200
"""The tests between which is measured: the first ones build groups and fill caches."""


def pytest_configure(config: pytest.Config) -> None:
    folder, calls = Path(os.environ["BENCHMARK_FOLDER"]), os.environ["BENCHMARK_PROFILE"] == "calls"
    # By the wall's clock a wait is work, also that for a core of a busy machine.
    config.pluginmanager.register(
        Meter(folder, cProfile.Profile(time.thread_time) if calls else None)
    )


class Meter:
    """Measures one process, which may have been forked since this was made."""

    def __init__(self, folder: Path, profile: cProfile.Profile | None) -> None:
        self._folder = folder
        self._profile = profile
        self._tests = 0
        self._cpu = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._tests += 1
        if self._tests == FIRST:
            self._begin()
        elif self._tests == LAST:
            kind = "rank" if hasattr(item.config, "workerinput") else "controller"
            self._end(self._folder / f"{kind}-{os.getpid()}")
        return (yield)

    def _begin(self) -> None:
        self._cpu = time.process_time()
        if self._profile is not None:
            self._profile.enable()

    def _end(self, file: Path) -> None:
        if self._profile is not None:
            self._profile.disable()
            self._profile.dump_stats(file.with_suffix(".prof"))
        per_test = (time.process_time() - self._cpu) / (LAST - FIRST)
        file.with_suffix(".json").write_text(json.dumps(per_test))
