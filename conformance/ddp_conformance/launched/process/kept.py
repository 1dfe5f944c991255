"""The main loop of a server that outlives a rank, and what its forks do."""

from __future__ import annotations

import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import process
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import numpy.random  # noqa: F401 - for those who fork
import torch.testing._internal.distributed.fake_pg  # noqa: F401 - for those who fork

from ddp_conformance.framework.registry import all_checks
from pytest_ddp.rank.startup.preload import without_collector

SECONDS = 20
"""After which the kernel ends a fork, whatever it does."""


INTERVAL = 10.0
"""Seconds between two looks whether the folder of the session is still there."""


def serve(listener: int, host: int) -> NoReturn:
    """Fork for each caller; end with the process of the pidfd ``host``, or with our address."""
    with without_collector():
        # What files of tests import, and pytest with it: a fork would need 0.25 s of CPU for that.
        # By name, as the public names are above this module.
        importlib.import_module("ddp_conformance.api")
        all_checks()
    listening = socket.socket(fileno=listener)
    callers: list[socket.socket] = []
    while os.path.exists(listening.getsockname()):
        waited: list[socket.socket | int] = [listening, host, *callers]
        ready = select.select(waited, [], [], INTERVAL)[0]
        if host in ready:
            break
        if listening in ready:
            callers.append(listening.accept()[0])
        for caller in [caller for caller in callers if caller in ready]:
            callers.remove(caller)
            # A rank that only sees to it that this server is there closes its connection.
            if caller.recv(1, socket.MSG_PEEK) and os.fork() == 0:
                for other in (listening, *callers):
                    other.close()
                signal.alarm(SECONDS)
                try:
                    answer(Connection(caller.detach()))
                finally:
                    os._exit(0)  # else the interpreter would take torch down, which takes 0.2 s
            caller.close()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                """Until no fork has ended that is not reaped."""
    os._exit(0)


def answer(connection: Connection) -> None:
    """Take over the caller's place; send what its function returns or raises."""
    place = connection.recv()
    os.environ.clear()
    os.environ.update(place["environment"])
    sys.path[:] = place["path"]
    os.chdir(place["directory"])
    current: Any = process.current_process()
    current._config["tempdir"] = place["tempdir"]
    try:
        function: Callable[[], object] = connection.recv()
        answer = ("returned", function())
    except BaseException as error:
        answer = ("raised", f"{type(error).__name__}: {error}")
    connection.send(answer)
