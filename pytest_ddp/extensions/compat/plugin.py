"""Registers the adapter of each plugin that is registered.

Imported by every pytest run.
"""

from __future__ import annotations

from importlib import import_module

import pytest

_ADAPTERS = {
    "allure_listener": ("allure", "Allure"),
    "pytest-benchmark": ("benchmark", "Benchmark"),
    "dependency": ("dependency", "Dependency"),
    "syrupy": ("syrupy", "Syrupy"),
    "TestmonCollect": ("testmon", "Testmon"),
}
"""Module and class of each adapter, by the registered name of its plugin."""


# First, because other implementations ask for the withheld hooks of the plugin.
@pytest.hookimpl(tryfirst=True)
def pytest_plugin_registered(plugin_name: str, manager: pytest.PytestPluginManager) -> None:
    module, cls = _ADAPTERS.get(plugin_name, ("", ""))
    name = f"ddp-compat-{module}"
    if module and not manager.hasplugin(name):
        adapter = getattr(import_module(f"pytest_ddp.extensions.compat.{module}"), cls)
        manager.register(adapter(), name)
