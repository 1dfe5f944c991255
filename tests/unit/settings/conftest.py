"""Options and marks without the rest of the plugin."""

from __future__ import annotations

import pytest

from pytest_ddp import hookspecs
from pytest_ddp.settings.mark import MARKER_HELP
from pytest_ddp.settings.options import add_options


class OptionsOnly:
    """A plugin with our options and marker but none of our other hooks."""

    def pytest_addhooks(self, pluginmanager: pytest.PytestPluginManager) -> None:
        pluginmanager.add_hookspecs(hookspecs)

    def pytest_addoption(self, parser: pytest.Parser) -> None:
        add_options(parser)

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", MARKER_HELP)


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    # pytester forgets what was imported, so that each test would import all plugins anew.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.plugins.append(OptionsOnly())
    return pytester
