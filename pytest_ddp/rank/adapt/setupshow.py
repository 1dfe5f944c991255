"""``--setup-show`` inside a rank, which has no terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from _pytest._io import TerminalWriter


class SetupShow:
    """Collects what ``--setup-show`` prints, for the controller to print."""

    def __init__(self, config: pytest.Config) -> None:
        self._stream = io.StringIO()
        writer = TerminalWriter(self._stream)
        if config.getoption("setupshow", False):
            # pytest would get the writer from the terminal reporter, which ranks do not have.
            quiet: Any = config
            quiet.get_terminal_writer = lambda: writer

    def take(self) -> str:
        """The text since the last call."""
        text = self._stream.getvalue()
        self._stream.seek(0)
        self._stream.truncate()
        return text
