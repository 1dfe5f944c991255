"""The main loop of a server that outlives a rank, and what its forks do."""

from __future__ import annotations

import gc
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

SECONDS = 20
"""After which the kernel ends a fork, whatever it does."""


INTERVAL = 10.0
"""Seconds between two looks whether the folder of the session is still there."""


def serve(listener: int, host: int) -> NoReturn:
    """Fork for each caller; end with the process of the pidfd ``host``, or with our address."""
    # What files of tests import, and pytest with it: a fork would need 0.25 s of CPU for that. By
    # name, as the public names are above this module.
    importlib.import_module("ddp_conformance.api")
    all_checks()
    gc.collect()
    gc.freeze()
    listening = socket.socket(fileno=listener)
    while os.path.exists(listening.getsockname()):
        ready = select.select([listener, host], [], [], INTERVAL)[0]
        if host in ready:
            break
        if listener not in ready:
            continue
        caller, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            signal.alarm(SECONDS)
            answer(Connection(caller.detach()))
            os._exit(0)
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
