"""A server of forks with imports of its own, alive as long as the process that uses it.

multiprocessing has one server for each process, and its first user decides what it imports.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from multiprocessing.popen_forkserver import Popen
from multiprocessing.process import BaseProcess
from typing import Any
from unittest import mock

from ddp_conformance.launched.start.kept_servers import SINGLE_THREADED


class Server:
    """Starts with its first process, and ends with the process that owns it."""

    def __init__(self, *preload: str) -> None:
        self._server = forkserver.ForkServer()
        self._server.set_forkserver_preload(list(preload))

    def process(self, target: Callable[..., object], args: tuple[Any, ...]) -> BaseProcess:
        """A process that is not started yet."""
        process = _Process(target=target, args=args)
        process.server = self
        return process

    def fork(self, fds: Any) -> Any:
        """Fork as ``multiprocessing.forkserver.connect_to_new_process`` does."""
        return self._server.connect_to_new_process(fds)


class _Process(ForkServerProcess):
    server: Server

    @staticmethod
    def _Popen(process_obj: Any) -> Popen:  # noqa: N802 - the hook of multiprocessing
        server = process_obj.__dict__.pop("server")  # holds locks; no part of what is sent
        patch = mock.patch.object
        with (
            patch(forkserver, "connect_to_new_process", server.fork),
            mock.patch.dict(os.environ, SINGLE_THREADED),
        ):
            return Popen(process_obj)
