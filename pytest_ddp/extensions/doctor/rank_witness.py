"""A pytest plugin of the trial: writes down what plugins do in the pytest process, and in a rank.

Both are looked at as they are in a real session: no second copy of the rules for ranks can age.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_ddp.system.stdlib import json, os

FOLDER = "DDP_DOCTOR_FOLDER"
"""Environment variable with the folder for what is written down."""


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Witness(config), "ddp-doctor")


def tell_rank(config: pytest.Config) -> None:
    """Write down what installed plugins are in this rank; called by the trial's test."""
    _write("rank", {"plugins": _plugins(config)})


class _Witness:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._warnings: list[str] = []
        self._verdicts: dict[str, str] = {}

    def pytest_warning_recorded(self, warning_message: Any) -> None:
        self._warnings.append(str(warning_message.message))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._verdicts[str(report.when)] = report.outcome

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        if not hasattr(self._config, "workerinput"):
            told = {"warnings": self._warnings, "verdicts": self._verdicts}
            _write("controller", {"plugins": _plugins(self._config), **told})


def _plugins(config: pytest.Config) -> dict[str, dict[str, Any]]:
    """Installed plugins by their names: distribution, and hooks that they implement here."""
    manager = config.pluginmanager
    found: dict[str, dict[str, Any]] = {}
    for plugin, distribution in manager.list_plugin_distinfo():
        name = manager.get_name(plugin) or ""
        hooks = [caller.name for caller in manager.get_hookcallers(plugin) or ()]
        whose = f"{distribution.project_name} {distribution.version}"
        found[name] = {"distribution": whose, "hooks": sorted(hooks)}
    return found


def _write(name: str, told: dict[str, Any]) -> None:
    if FOLDER not in os.environ:
        return  # somebody runs the trial by hand
    path = Path(os.environ[FOLDER], name)
    # Two ranks at once: what is read must be whole.
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(told))
    new.replace(path)
