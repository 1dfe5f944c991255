"""Log records of a rank, which are sent to pytest's live log and log file."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import _pytest.logging
import pytest

from pytest_ddp.system.own import os, socket, time
from pytest_ddp.wire import logged


class LiveLogs(logging.Handler):
    """Replaces pytest's live log handler in ranks, and sends the records to the pytest process."""

    def __init__(self, config: pytest.Config, descriptor: int) -> None:
        """
        Args:
            config: of the rank's session.
            descriptor: the socket for records.
        """
        super().__init__()
        self._socket = socket.socket(fileno=descriptor)
        self._inode = os.fstat(descriptor).st_ino
        self._when: str | None = None
        self._sends = False
        self._has_collected = True
        self._plugin: Any = config.pluginmanager.get_plugin("logging-plugin")
        if self._plugin is not None:
            self._plugin.log_cli_handler = self
            self._plugin.set_log_path = self._set_path

    # ------------------------------------------------------------------ for the runner

    def begin(self, level: int | None) -> None:
        """Begin a test; records from ``level`` on are sent, none with None."""
        if self._has_collected:
            self._lower_level()
            self._has_collected = False
        if level is None:
            self._sends = False
        else:
            self._send_from(level)

    def _send_from(self, level: int) -> None:
        self._sends = True
        self.setLevel(level)
        # For each test, as there may be new loggers that do not propagate, and
        # logging.basicConfig(force=True) removes all handlers.
        _pytest.logging.catching_logs(self).__enter__()

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Send nothing during collection: the pytest process logs the same at its own."""
        sent, self._sends = self._sends, False
        try:
            yield
        finally:
            self._sends = sent
            self._has_collected = True

    def _lower_level(self) -> None:
        """Lower the root logger's level, as pytest's loop does after collection."""
        names = ("log_cli_level", "log_file_level")
        levels = (getattr(self._plugin, name, None) for name in names)
        root = logging.getLogger()
        root.setLevel(min([root.level, *(level for level in levels if level is not None)]))

    # ------------------------------------------------------------------ for pytest

    def reset(self) -> None:
        """Part of pytest's interface: called when a test begins."""

    def set_when(self, when: str | None) -> None:
        """Part of pytest's interface: called when a phase begins."""
        self._when = when

    def _set_path(self, fname: str) -> None:
        # As pytest's own, but the pytest process opens the file, once for all ranks.
        if not self._sends:
            self._send_from(self._plugin.log_file_level or logging.NOTSET)
        self._send(logged.LogPath(time.monotonic(), str(fname)).packet())

    # ------------------------------------------------------------------ for logging

    def emit(self, record: logging.LogRecord) -> None:
        """Send the record; waits while the pytest process does not keep up."""
        if not self._sends:
            return
        # A broken record fails the test in pytest's capturing handler, so it is ignored here.
        with contextlib.suppress(Exception):
            self._send(logged.pack(record, self._when, time.monotonic()))

    def _send(self, packet: bytes) -> None:
        # If the test has closed the descriptor, its number may be another file's by now.
        if os.fstat(self._socket.fileno()).st_ino == self._inode:
            logged.send(self._socket, packet)
