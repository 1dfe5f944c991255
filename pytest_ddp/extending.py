"""Finds and loads extensions. None is named here; the package works without them.

An extension is a folder in ``pytest_ddp/extensions``. Its ``plugin.py`` is a pytest plugin, which
is registered together with the core's; its ``command.py`` is a command of ``python -m pytest_ddp``,
and its ``codes.py`` has the codes of its failures (:mod:`pytest_ddp.verdict.codes`).
Its hooks are pytest's and those of :mod:`pytest_ddp.hookspecs`.

Imported by every pytest run.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

RANK_PLUGIN = "pytest_ddp.rank.hooks.fixtures"
"""Registered by host and ranks before all others."""
_FOLDER = Path(__file__).with_name("extensions")


def names(kind: str) -> list[str]:
    """The extensions with a module of this name."""
    return sorted(file.parent.name for file in _FOLDER.glob(f"*/{kind}.py"))


def load(name: str, kind: str) -> ModuleType:
    """Import this module of an extension."""
    return import_module(f"pytest_ddp.extensions.{name}.{kind}")


def register_all(pluginmanager: pytest.PytestPluginManager) -> None:
    """Register the plugin of each extension; ``-p no:ddp-NAME`` leaves one out."""
    for name in names("plugin"):
        pluginmanager.register(load(name, "plugin"), f"ddp-{name}")


def on_rank(config: pytest.Config) -> bool:
    """Whether this process is a host or a rank, and not the pytest process or an xdist worker."""
    return config.pluginmanager.hasplugin(RANK_PLUGIN)
