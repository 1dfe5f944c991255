"""Entry points of the processes that the controller starts.

A host imports what ranks share, sets up pytest, and forks them. Where fork is not safe, a bare
nursery starts an interpreter for each rank, which does all of that by itself; from there on
all is the same code.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, NoReturn, TypeVar

import pytest
from _pytest.main import wrap_session

from pytest_ddp.rank.adapt import measuring
from pytest_ddp.rank.birth import preload, shared, threads
from pytest_ddp.rank.birth.collection import Collection
from pytest_ddp.rank.birth.elsewhere import Elsewhere
from pytest_ddp.rank.birth.owncode import OwnCode
from pytest_ddp.rank.birth.session import configure
from pytest_ddp.rank.exits import exiting, faults
from pytest_ddp.rank.nursery import Nursery, Start
from pytest_ddp.rank.watch import uncompiled
from pytest_ddp.system import folder, hugepages, processes
from pytest_ddp.system.own import gc, os, socket, subprocess
from pytest_ddp.wire.channel import Channel, dumps, loads
from pytest_ddp.wire.hosting import (
    Collected,
    HostReady,
    Session,
    StartRank,
)
from pytest_ddp.wire.program import command

_Kind = TypeVar("_Kind")
_MANY = 32
"""Births after which huge pages have cost no more than they would have saved."""


def main(role: dict[str, Any]) -> NoReturn:
    """Be what ``role`` says: a host, (with ``order``) a spawned rank, or an extension's service."""
    sys.argv = ["pytest"]  # without what only this program was told
    channel = Channel(socket.socket(fileno=role["descriptor"]))
    if "service" in role:
        import_module(role["service"]).serve(channel, role["parent"])
    if "order" in role:
        processes.die_with_parent(role["parent"])
        order = loads(role["order"])
        assert isinstance(order, StartRank)
        sys.meta_path.append(Elsewhere(role["path"]))
        for descriptor in role["files"]:
            os.set_inheritable(descriptor, False)
        _spawned_rank(channel, role["files"], order)
    session = _expect(channel, Session, role["folder"])
    if session.spawns:
        _spawn(channel, session, role["folder"])
    _host(channel, session, role["folder"])


# ---------------------------------------------------------------- fork


def _host(channel: Channel, session: Session, own_folder: str) -> NoReturn:
    # While it imports nobody reads the channel, so that its end would go unseen.
    processes.die_with_parent(os.getppid())
    preload.torch()
    _be_called_as(session)
    collection = Collection()
    config, own = configure(session, collection)
    # Now that pytest has marked its plugins for rewriting, and while the controller still
    # collects.
    preload.what_ranks_use()
    collected = _expect(channel, Collected, own_folder)
    # Looked for before, too: the host of shared imports is a fork itself, without the threads.
    problem = threads.problem("their host")
    if problem is None:
        shared.imports_of(collected)
    sys.meta_path.append(Elsewhere(collected.path))

    def fork_ranks(pytest_session: pytest.Session) -> NoReturn:
        if session.imports_in_host:
            with measuring.during(session.measured):
                own.load(pytest_session)
                collection.collect(pytest_session, collected.files)
        host, births = os.getpid(), itertools.count(1)

        def fork(order: StartRank, descriptors: list[int]) -> int:
            if next(births) == _MANY:
                hugepages.collapse()
            child = os.fork()
            if child == 0:
                channel.close()
                processes.die_with_parent(host)
                theirs = Channel(socket.socket(fileno=descriptors[0]))
                _live(theirs, descriptors[1:], order, pytest_session, collection, own)
            return child

        channel.send(HostReady(problem or threads.problem("their host")))
        uncompiled.hide_own_frames_now()
        exiting.spare_torch()
        gc.collect()
        gc.freeze()
        # Now it has to outlive the controller, to clean up after a ``kill -9`` of it.
        processes.outlive_parent()
        _serve(channel, fork, own_folder)

    _run_session(config, fork_ranks)


def _be_called_as(session: Session) -> None:
    """Tell what asks how this program was called how the pytest process was."""
    sys.argv = list(session.argv)
    if session.program is not None:
        sys.modules["__main__"].__file__ = session.program


# ---------------------------------------------------------------- spawn


def _spawn(channel: Channel, session: Session, own_folder: str) -> NoReturn:
    path = _expect(channel, Collected, own_folder).path

    def spawn(order: StartRank, descriptors: list[int]) -> int:
        known = {"order": dumps(order), "path": path, "parent": os.getpid()}
        role = {**known, "descriptor": descriptors[0], "files": descriptors[1:]}
        # Orders of sets differ between the ranks of a cluster, and here from run to run alike.
        seed = {"PYTHONHASHSEED": str((session.seed + order.rank + 1) % 2**32)}
        process = subprocess.Popen(
            command(role),
            env=seed | os.environ | order.environment,
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        process.returncode = 0  # the nursery reaps it; Popen must not try
        return process.pid

    channel.send(HostReady(None))
    _serve(channel, spawn, own_folder)


def _spawned_rank(channel: Channel, files: list[int], order: StartRank) -> NoReturn:
    session = _expect(channel, Session)
    preload.torch()
    _be_called_as(session)
    collection = Collection()
    config, own = configure(session, collection)
    preload.what_ranks_use()

    def live(pytest_session: pytest.Session) -> NoReturn:
        _live(channel, files, order, pytest_session, collection, own)

    _run_session(config, live)


# ---------------------------------------------------------------- both


def _serve(channel: Channel, start: Start, own_folder: str) -> NoReturn:
    Nursery(channel, start).serve()
    folder.remove(own_folder)
    faults.leave(0)


def _run_session(config: pytest.Config, serve: Callable[[pytest.Session], NoReturn]) -> NoReturn:
    """Begin pytest's session and, in place of its run loop, do ours."""

    def loop(_: pytest.Config, session: pytest.Session) -> NoReturn:
        serve(session)

    code = wrap_session(config, loop)
    print(f"pytest ended with exit code {code} before any test could run", file=sys.stderr)
    faults.leave(1)


def _live(
    channel: Channel,
    files: list[int],
    order: StartRank,
    session: pytest.Session,
    collection: Collection,
    own: OwnCode,
) -> NoReturn:
    from pytest_ddp.rank.life import live  # noqa: PLC0415 - imports torch

    live(channel, files, order, session, collection, own)


def _expect(channel: Channel, kind: type[_Kind], own_folder: str = "") -> _Kind:
    received = channel.receive()
    if received is None:
        # Whoever has started this host may have been killed, and the folder is ours as well.
        folder.remove(own_folder)
        faults.leave(0)
    message, _ = received
    assert isinstance(message, kind), message
    return message
