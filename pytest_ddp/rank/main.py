"""Entry points of the processes that the controller starts.

A host forks ranks from one collected session. Where fork is not safe, a bare nursery
starts an interpreter for each rank, which collects by itself; from there on all is the
same code.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from pytest_ddp.channel import Channel
from pytest_ddp.protocol import Collect, HostReady, Session, StartRank
from pytest_ddp.rank import faults, preload, processes
from pytest_ddp.rank.nursery import Nursery
from pytest_ddp.rank.session import Items, configure

BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from pytest_ddp.rank.main import main; main(json.loads(sys.argv[2]))"
)
"""Given to ``python -c``: the controller's import path comes before any import of ours."""


def command(role: dict[str, Any]) -> list[str]:
    """The command line of a process that runs :func:`main` with this role."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-c", BOOTSTRAP, json.dumps(sys.path), json.dumps(role)]


def main(role: dict[str, Any]) -> NoReturn:
    """Be what ``role`` says: a host, or (with ``order``) a spawned rank."""
    sys.argv = ["pytest"]
    channel = Channel(socket.socket(fileno=role["descriptor"]))
    if "order" in role:
        processes.die_with_parent(role["parent"])
        _spawned_rank(channel, StartRank(**role["order"]))
    session = _expect(channel, Session)
    if session.spawns:
        _spawn(channel, role["directory"])
    _host(channel, session, role["directory"])


def _end_host(directory: str) -> NoReturn:
    """The host outlives the controller, and so cleans up after a ``kill -9`` of it."""
    shutil.rmtree(directory, ignore_errors=True)
    faults.leave(0)


# ---------------------------------------------------------------- fork


def _host(channel: Channel, session: Session, directory: str) -> NoReturn:
    _end_with_controller_while_collecting(directory)
    preload.torch()
    pid = os.getpid()

    def fork_ranks(pytest_session: Any, items: Items) -> NoReturn:
        def fork(order: StartRank, descriptor: int) -> int:
            child = os.fork()
            if child == 0:
                channel.close()
                processes.die_with_parent(pid)
                _live(Channel(socket.socket(fileno=descriptor)), order, pytest_session, items)
            return child

        preload.what_the_tests_use(items.by_nodeid.values())
        channel.send(HostReady(_fork_problem()))
        gc.collect()
        gc.freeze()
        processes.outlive_parent()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        Nursery(channel, fork).serve()
        _end_host(directory)

    _run_session(channel, session, fork_ranks)


def _end_with_controller_while_collecting(directory: str) -> None:
    # Nobody reads the channel then, so that its end would go unseen. Once the host
    # serves, it has to outlive the controller.
    signal.signal(signal.SIGTERM, lambda *_: _end_host(directory))
    processes.die_with_parent(os.getppid(), signal.SIGTERM)


def _fork_problem() -> str | None:
    cuda = sys.modules["torch"].cuda
    if cuda.is_initialized():
        return "CUDA is initialised at collection"
    others = [thread.name for thread in threading.enumerate()[1:]]
    if others:
        return f"collection started threads ({', '.join(others)})"
    if len(os.listdir("/proc/self/task")) > 1:
        return "collection started native threads"
    return None


# ---------------------------------------------------------------- spawn


def _spawn(channel: Channel, directory: str) -> NoReturn:
    def spawn(order: StartRank, descriptor: int) -> int:
        fields = {name: getattr(order, name) for name in order.__dataclass_fields__}
        role = {"order": fields, "descriptor": descriptor, "parent": os.getpid()}
        process = subprocess.Popen(
            command(role), pass_fds=[descriptor], stdin=subprocess.DEVNULL, start_new_session=True
        )
        process.returncode = 0  # the nursery reaps it; Popen must not try
        return process.pid

    channel.send(HostReady(None))
    Nursery(channel, spawn).serve()
    _end_host(directory)


def _spawned_rank(channel: Channel, order: StartRank) -> NoReturn:
    session = _expect(channel, Session)
    preload.torch()

    def live(pytest_session: Any, items: Items) -> NoReturn:
        _live(channel, order, pytest_session, items)

    _run_session(channel, session, live)


# ---------------------------------------------------------------- both


def _run_session(
    channel: Channel, session: Session, loop: Callable[[Any, Items], NoReturn]
) -> NoReturn:
    """Collect with pytest and, in place of its run loop, do ours."""
    items = Items()

    class Loop:
        @pytest.hookimpl(tryfirst=True)
        def pytest_runtestloop(self, session: pytest.Session) -> NoReturn:
            loop(session, items)

    config = configure(session, [items, Loop(), "pytest_ddp.rank.fixtures"])
    # Now that pytest has marked its plugins for rewriting, and while the controller still
    # collects.
    preload.what_ranks_use()
    config.args = list(_expect(channel, Collect).files)
    code = config.hook.pytest_cmdline_main(config=config)
    print(f"pytest ended with exit code {code} before any test could run", file=sys.stderr)
    faults.leave(1)


def _live(channel: Channel, order: StartRank, session: Any, items: Items) -> NoReturn:
    from pytest_ddp.rank.life import live  # noqa: PLC0415 - imports torch

    live(channel, order, session, items)


def _expect(channel: Channel, kind: Any) -> Any:
    received = channel.receive()
    if received is None:
        faults.leave(0)
    message, _ = received
    assert isinstance(message, kind), message
    return message
