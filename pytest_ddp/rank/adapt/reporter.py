"""The terminal reporter in a rank, for code of tests that asks for it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter

_NAME = "terminalreporter"


def stand_in(config: pytest.Config) -> None:
    """Let it be found by its name.

    Not before installed plugins are configured: some put a reporter of their own in its place,
    and do without where there is none, as in a worker of pytest-xdist.
    """
    output: Any = _Output()
    config.pluginmanager.register(_Reporter(config, output), _NAME)


class _Reporter(TerminalReporter):  # type: ignore[misc] # final for type checkers alone
    """What is written by it is output of the rank; it knows of no reports, and makes none."""

    def __dir__(self) -> Iterable[str]:
        # Where pluggy looks for hooks.
        return [name for name in super().__dir__() if not name.startswith("pytest_")]


class _Output:
    """Standard output as it is now: capturing replaces it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)
