"""Turns a process into a rank. Imports torch, which a host that spawns its ranks does not need."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from pytest_ddp.protocol.channel import Channel
from pytest_ddp.protocol.host_messages import StartRank
from pytest_ddp.rank.cleanup import leftovers, seeding
from pytest_ddp.rank.environment import RankEnvironment
from pytest_ddp.rank.exits import crash_stacks
from pytest_ddp.rank.groups import connections, torch_state
from pytest_ddp.rank.groups.env_rendezvous import EnvRendezvous
from pytest_ddp.rank.hooks import output, stand_ins
from pytest_ddp.rank.hooks.log_handlers import LiveLogs
from pytest_ddp.rank.hooks.rank_coverage import RankCoverage
from pytest_ddp.rank.link import Link
from pytest_ddp.rank.operations import kernels
from pytest_ddp.rank.runner import Runner
from pytest_ddp.rank.startup.collection import Collection
from pytest_ddp.rank.startup.user_code import UserCode
from pytest_ddp.rank.status import instruments, landmarks
from pytest_ddp.system import processes, tempfiles
from pytest_ddp.system.stdlib import os, traceback


def live(
    channel: Channel,
    files: list[int],
    start: StartRank,
    session: Any,
    collection: Collection,
    user_code: UserCode,
) -> NoReturn:
    """Become the rank; never returns into the host's frames below.

    Args:
        channel: to the controller.
        files: descriptors of :class:`pytest_ddp.launch.rank_process.RankFiles`, then of
            :class:`pytest_ddp.launch.streams.Streams`, and the listening socket for a rank that
            serves the rendezvous from its start on.
        start: the rank's place in its world.
        session: pytest's, from the host.
        collection: collects test files.
        user_code: the user's plugins and conftest files.
    """
    with contextlib.suppress(PermissionError):  # a spawned rank leads its session already
        os.setsid()
    listening = [files.pop()] if start.serve_store else []
    stacks, stacks_of_children, page, trace = map(tempfiles.path_of, files[:4])
    # Before all else: a probe's SIGUSR1 would kill a rank without a handler.
    crash_stacks.install(stacks, stacks_of_children)
    # Before other code registers fork hooks: the first one registered runs last, at the fork.
    processes.watch()
    try:
        _renew_tempdir()
        leftovers.outlive_rank(start.folder)
        _own_tmp_path_base(session.config, start)
        *streams, log = files[4:]
        output.capture_afresh(session.config, start.world.world_size, streams)
        live_logs = LiveLogs(session.config, log)
        environment = RankEnvironment()
        # Before any user code is imported, which may read its rank or draw random numbers.
        environment.apply(start.environment)
        seeding.unseed()
        made = instruments.make(page, trace, start)
        # Opened by path above; the test must not find descriptors that are not its own.
        for descriptor in (*files[:4], *streams):
            os.close(descriptor)
        operations = made.group.journal.operations
        operations.describer.root = f"{session.config.rootpath}/"
        # Before user code is loaded, so that what it makes is observed.
        landmarks.install(made.phase_stack)
        torch_state.watch()
        kernels.watch_functional(operations)
        measuring = None if start.measured is None else RankCoverage(start.measured)
        rendezvous = EnvRendezvous()
        rendezvous.begin(listening, serve_now=start.serve_store)
        stand_ins.reporter_stand_in(session.config)
        user_code.load(session)
        link = Link(
            channel, made.side_channel, made.status_reporter, made.page, rendezvous, operations
        )
        operations.report = link.warn
        meets = connections.begin(start.folder, lambda: link.test)
        operations.on_new_group.append(meets.mark)
        stand_ins.junit_stand_in(session.config, link.send)
        session.config.hook.pytest_ddp_rank_begins(
            config=session.config, announce_end=link.announce_end
        )
        session.config.hook.pytest_ddp_operations(operations=operations)
        if measuring is not None:
            link.save, measuring.tell = measuring.save, link.warn
            session.config.pluginmanager.register(measuring)
        runner = Runner(link, made, start, environment, rendezvous, session, collection, live_logs)
        runner.live()
    except BaseException:
        # Standard error may be a capture file that is lost with the rank.
        crash_stacks.write(traceback.format_exc())
    crash_stacks.exit_now(1)


def _renew_tempdir() -> None:
    """Make tempfile choose a folder again, if the one that the host chose was removed."""
    if tempfile.tempdir is not None and not os.path.isdir(tempfile.tempdir):
        tempfile.tempdir = None


def _own_tmp_path_base(config: Any, start: StartRank) -> None:
    factory = getattr(config, "_tmp_path_factory", None)
    if factory is not None:
        base = Path(config.option.basetemp).parent
        factory._given_basetemp = base / f"ddp-rank{start.rank}-{start.serial}"
        factory._basetemp = None
