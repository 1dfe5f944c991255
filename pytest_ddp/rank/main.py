"""Entry points of the processes that the controller starts.

A host imports what ranks share, sets up pytest, and forks the ranks. Where fork is not safe, a host
without these imports starts an interpreter for each rank, which does all of that itself; from there
on the code is the same.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, NoReturn, TypeVar

import pytest
from _pytest.main import wrap_session

from pytest_ddp.protocol.channel import Channel, dumps, loads
from pytest_ddp.protocol.host_messages import Collected, HostReady, Session, StartRank
from pytest_ddp.protocol.program import command
from pytest_ddp.rank.exits import crash_stacks, exiting
from pytest_ddp.rank.forking import RankHost, StartProcess
from pytest_ddp.rank.hooks import rank_coverage
from pytest_ddp.rank.startup import needed_names, preload, shared_preload, threads
from pytest_ddp.rank.startup.collection import Collection, LateImportFinder
from pytest_ddp.rank.startup.pytest_config import configure
from pytest_ddp.rank.startup.user_code import UserCode
from pytest_ddp.rank.status import uncompiled
from pytest_ddp.system import processes, tempfiles
from pytest_ddp.system.stdlib import gc, os, socket, subprocess

_Kind = TypeVar("_Kind")
_COLLAPSE_AT = 32
"""Before the fork with this number, memory is moved to huge pages: the move takes no more time than
it would have saved for the ranks so far, and saves time for all later ones."""


def main(role: dict[str, Any]) -> NoReturn:
    """Run as host, as spawned rank (``role`` has an ``order``), or as an extension's service."""
    sys.argv = ["pytest"]  # without this program's own arguments
    channel = Channel(socket.socket(fileno=role["descriptor"]))
    if "service" in role:
        import_module(role["service"]).serve(channel, role["parent"])
    if "order" in role:
        processes.die_with_parent(role["parent"])
        order = loads(role["order"])
        assert isinstance(order, StartRank)
        sys.meta_path.append(LateImportFinder(role["path"]))
        for descriptor in role["files"]:
            os.set_inheritable(descriptor, False)
        _spawned_rank(channel, role["files"], order)
    session = _expect(channel, Session, role["folder"])
    if session.spawns:
        _spawn(channel, session, role["folder"])
    _host(channel, session, role["folder"])


# ---------------------------------------------------------------- fork


def _host(channel: Channel, session: Session, own_folder: str) -> NoReturn:
    # The channel is not read during the imports, so that its end would go unnoticed.
    processes.die_with_parent(os.getppid())
    preload.torch()
    _check_names()
    _set_program(session)
    collection = Collection()
    config, own = configure(session, collection)
    # After configure(), in which pytest marks its plugins for assertion rewriting, and while the
    # controller still collects.
    preload.what_ranks_use()
    collected = _expect(channel, Collected, own_folder)
    # Before the fork that does the shared imports, too: threads do not survive it.
    problem = threads.problem("their host")
    if problem is None:
        shared_preload.import_shared(collected)
    sys.meta_path.append(LateImportFinder(collected.path))

    def fork_ranks(pytest_session: pytest.Session) -> NoReturn:
        if session.imports_in_host:
            with rank_coverage.during(session.measured):
                own.load(pytest_session)
                collection.collect(pytest_session, collected.files)
        host, starts = os.getpid(), itertools.count(1)

        def fork(start: StartRank, descriptors: list[int]) -> int:
            if next(starts) == _COLLAPSE_AT:
                processes.collapse()
            child = os.fork()
            if child == 0:
                channel.close()
                processes.die_with_parent(host)
                theirs = Channel(socket.socket(fileno=descriptors[0]))
                _live(theirs, descriptors[1:], start, pytest_session, collection, own)
            return child

        channel.send(HostReady(problem or threads.problem("their host")))
        uncompiled.hide_own_frames_now()
        exiting.skip_torch_finalizers()
        gc.collect()
        gc.freeze()
        # From now on the host outlives the controller, to clean up after a ``kill -9`` of it.
        processes.outlive_parent()
        _serve(channel, fork, own_folder)

    _run_session(config, fork_ranks)


def _set_program(session: Session) -> None:
    """Make ``sys.argv`` and ``__main__`` those of the pytest process."""
    sys.argv = list(session.argv)
    if session.program is not None:
        sys.modules["__main__"].__file__ = session.program


# ---------------------------------------------------------------- spawn


def _spawn(channel: Channel, session: Session, own_folder: str) -> NoReturn:
    path = _expect(channel, Collected, own_folder).path

    def spawn(start: StartRank, descriptors: list[int]) -> int:
        known = {"order": dumps(start), "path": path, "parent": os.getpid()}
        role = {**known, "descriptor": descriptors[0], "files": descriptors[1:]}
        # On a cluster, ranks iterate over sets in different orders; here they do so reproducibly.
        seed = {"PYTHONHASHSEED": str((session.seed + start.rank + 1) % 2**32)}
        process = subprocess.Popen(
            command(role),
            env=seed | os.environ | start.environment,
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        process.returncode = 0  # Nursery reaps it; Popen must not try
        return process.pid

    channel.send(HostReady(None))
    _serve(channel, spawn, own_folder)


def _spawned_rank(channel: Channel, files: list[int], start: StartRank) -> NoReturn:
    session = _expect(channel, Session)
    preload.torch()
    _check_names()
    _set_program(session)
    collection = Collection(is_own_interpreters=True)
    config, own = configure(session, collection)
    preload.what_ranks_use()

    def live(pytest_session: pytest.Session) -> NoReturn:
        _live(channel, files, start, pytest_session, collection, own)

    _run_session(config, live)


# ---------------------------------------------------------------- both


def _check_names() -> None:
    if problem := needed_names.problem():
        # The failure of the first test shows what this process printed, its last line as the cause.
        print(problem, file=sys.stderr)
        crash_stacks.exit_now(1)


def _serve(channel: Channel, start: StartProcess, own_folder: str) -> NoReturn:
    RankHost(channel, start).serve()
    tempfiles.remove(own_folder)
    crash_stacks.exit_now(0)


def _run_session(config: pytest.Config, serve: Callable[[pytest.Session], NoReturn]) -> NoReturn:
    """Begin pytest's session, and call ``serve`` in place of its run loop."""

    def loop(_: pytest.Config, session: pytest.Session) -> NoReturn:
        serve(session)

    code = wrap_session(config, loop)
    print(f"pytest ended with exit code {code} before any test could run", file=sys.stderr)
    crash_stacks.exit_now(1)


def _live(
    channel: Channel,
    files: list[int],
    start: StartRank,
    session: pytest.Session,
    collection: Collection,
    user_code: UserCode,
) -> NoReturn:
    from pytest_ddp.rank.life import live  # noqa: PLC0415 - imports torch

    live(channel, files, start, session, collection, user_code)


def _expect(channel: Channel, kind: type[_Kind], own_folder: str = "") -> _Kind:
    received = channel.receive()
    if received is None:
        # The controller may have been killed, so the host has to remove the folder too.
        tempfiles.remove(own_folder)
        crash_stacks.exit_now(0)
    message, _ = received
    assert isinstance(message, kind), message
    return message
