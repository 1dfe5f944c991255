"""A terminal reporter in a rank, for test code that looks for one."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter

_NAME = "terminalreporter"


def stand_in(config: pytest.Config) -> None:
    """Register a reporter under the name of pytest's.

    Call it only after installed plugins are configured: some replace the reporter by their own, and
    do without if none exists, as in a worker of pytest-xdist.
    """
    output: Any = _Output()
    config.pluginmanager.register(_Reporter(config, output), _NAME)


class _Reporter(TerminalReporter):  # type: ignore[misc] # final for type checkers only
    """Writes to the rank's output; it gets no reports, and prints none."""

    def __dir__(self) -> Iterable[str]:
        # pluggy looks for hooks by dir(): hide them.
        return [name for name in super().__dir__() if not name.startswith("pytest_")]


class _Output:
    """The current standard output, which capturing replaces."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)
