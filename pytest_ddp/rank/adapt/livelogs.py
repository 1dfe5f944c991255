"""Log records of a rank on their way to pytest's live log and log file."""

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
    """Stands in ranks for pytest's handler of live logs, and sends what it gets."""

    def __init__(self, config: pytest.Config, descriptor: int) -> None:
        """
        Args:
            config: of the rank's session.
            descriptor: of the socket for records.
        """
        super().__init__()
        self._socket = socket.socket(fileno=descriptor)
        self._inode = os.fstat(descriptor).st_ino
        self._when: str | None = None
        self._listens = False
        self._has_collected = True
        self._plugin: Any = config.pluginmanager.get_plugin("logging-plugin")
        if self._plugin is not None:
            self._plugin.log_cli_handler = self
            self._plugin.set_log_path = self._set_path

    # ------------------------------------------------------------------ for the runner

    def begin(self, level: int | None) -> None:
        """A test begins; the pytest process listens from ``level`` on, or not at all."""
        if self._has_collected:
            self._lower_level()
            self._has_collected = False
        if level is None:
            self._listens = False
        else:
            self._listen(level)

    def _listen(self, level: int) -> None:
        self._listens = True
        self.setLevel(level)
        # Again for each test: there may be new loggers that do not propagate, and
        # logging.basicConfig(force=True) throws out whom it finds.
        _pytest.logging.catching_logs(self).__enter__()

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Keep to ourselves what is logged meanwhile: the pytest process collects the same."""
        listened, self._listens = self._listens, False
        try:
            yield
        finally:
            self._listens = listened
            self._has_collected = True

    def _lower_level(self) -> None:
        """Do for the root logger what pytest's loop does once all is collected."""
        names = ("log_cli_level", "log_file_level")
        wanted = (getattr(self._plugin, name, None) for name in names)
        root = logging.getLogger()
        root.setLevel(min([root.level, *(level for level in wanted if level is not None)]))

    # ------------------------------------------------------------------ for pytest

    def reset(self) -> None:
        """A test begins."""

    def set_when(self, when: str | None) -> None:
        """A phase begins."""
        self._when = when

    def _set_path(self, fname: str) -> None:
        # As pytest's own, but the file is the pytest process's, which opens it once.
        if not self._listens:
            self._listen(self._plugin.log_file_level or logging.NOTSET)
        self._send(logged.LogPath(time.monotonic(), str(fname)).packet())

    # ------------------------------------------------------------------ for logging

    def emit(self, record: logging.LogRecord) -> None:
        """Send the record; waits where the pytest process does not keep up."""
        if not self._listens:
            return
        # What is wrong with a record is told by pytest's capturing handler, which fails the test.
        with contextlib.suppress(Exception):
            self._send(logged.pack(record, self._when, time.monotonic()))

    def _send(self, packet: bytes) -> None:
        # The test may have closed the descriptor, whose number is another's by now.
        if os.fstat(self._socket.fileno()).st_ino == self._inode:
            logged.send(self._socket, packet)
