"""A pytest plugin of the trial: records the active plugins of the pytest process and of a rank.

It observes both in a real session, so that the doctor needs no copy of the rules for plugins in
ranks, which could become outdated.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_ddp.system.stdlib import json, os
from pytest_ddp.verdict.notices import SpawnedRanks

FOLDER = "DDP_DOCTOR_FOLDER"
"""Environment variable with the folder for the records."""


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Witness(config), "ddp-doctor")


def tell_rank(config: pytest.Config) -> None:
    """Record the installed plugins that are active in this rank; called by the trial's test."""
    from pytest_ddp.rank.startup.plugin_filter import PluginFilter  # noqa: PLC0415 - in ranks alone

    plugin_filter: Any = config.pluginmanager.get_plugin(PluginFilter.NAME)
    _write("rank", {"plugins": _plugins(config), "left_out": plugin_filter.left_out})


class _Witness:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._spawned: dict[str, str] | None = None
        """Why ranks are spawned, and what helps; None if they are forked."""
        self._verdicts: dict[str, str] = {}

    def pytest_warning_recorded(self, warning_message: Any) -> None:
        about = getattr(warning_message.message, "about", None)
        if isinstance(about, SpawnedRanks):
            self._spawned = about._asdict()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._verdicts[str(report.when)] = report.outcome

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        if not hasattr(self._config, "workerinput"):
            results = {"spawned": self._spawned, "verdicts": self._verdicts}
            _write("controller", {"plugins": _plugins(self._config), **results})


def _plugins(config: pytest.Config) -> dict[str, dict[str, Any]]:
    """Installed plugins by name: their distribution, and the hooks that they implement here."""
    manager = config.pluginmanager
    found: dict[str, dict[str, Any]] = {}
    for plugin, distribution in manager.list_plugin_distinfo():
        name = manager.get_name(plugin) or ""
        hooks = [caller.name for caller in manager.get_hookcallers(plugin) or ()]
        label = f"{distribution.project_name} {distribution.version}"
        found[name] = {"distribution": label, "hooks": sorted(hooks)}
    return found


def _write(name: str, record: dict[str, Any]) -> None:
    if FOLDER not in os.environ:
        return  # the trial is run by hand
    path = Path(os.environ[FOLDER], name)
    # Two ranks write at once; replace() makes sure that a reader sees a whole file.
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(record))
    new.replace(path)
