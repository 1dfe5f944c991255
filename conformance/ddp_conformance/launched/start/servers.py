"""A server of forks with imports of its own, alive as long as the process that uses it.

multiprocessing has one server for each process, and its first user decides what it imports. If a
subject's DataLoader workers started that server, the ranks that a check launches would find
nothing imported: each of them would import torch, which takes seconds.
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


class Server:
    """Starts with its first process, and ends with the process that owns it."""

    def __init__(self, *preload: str, **environment: str) -> None:
        self.environment = {**SINGLE_THREADED, **environment}
        self._server = forkserver.ForkServer()
        self._server.set_forkserver_preload(list(preload))

    def process(self, target: Callable[..., object], args: tuple[Any, ...]) -> BaseProcess:
        """A process that is not started yet."""
        process = _Process(target=target, args=args)
        process.server = self
        return process

    def start(self) -> None:
        """Start the server unless it runs; does not wait for its imports."""
        with mock.patch.dict(os.environ, self.environment):
            self._server.ensure_running()

    def fork(self, fds: Any) -> Any:
        """As ``multiprocessing.forkserver.connect_to_new_process``."""
        self.start()
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


SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""For the server, which the first process starts: one with a pool of threads is no place to fork
from."""
