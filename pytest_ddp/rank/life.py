"""What makes a process a rank. Imports torch, which the bare nursery does without."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from pytest_ddp.rank.adapt import junit, output, reporter
from pytest_ddp.rank.adapt.livelogs import LiveLogs
from pytest_ddp.rank.adapt.measuring import Measuring
from pytest_ddp.rank.birth.collection import Collection
from pytest_ddp.rank.birth.owncode import OwnCode
from pytest_ddp.rank.care import remains, seeding
from pytest_ddp.rank.environment import RankEnvironment
from pytest_ddp.rank.exits import faults
from pytest_ddp.rank.groups import functional, meeting, stores
from pytest_ddp.rank.groups.rendezvous import EnvRendezvous
from pytest_ddp.rank.link import Link
from pytest_ddp.rank.runner import Runner
from pytest_ddp.rank.watch import instruments, landmarks
from pytest_ddp.system import forks, memfile
from pytest_ddp.system.own import os, traceback
from pytest_ddp.wire.channel import Channel
from pytest_ddp.wire.hosting import StartRank


def live(
    channel: Channel,
    files: list[int],
    order: StartRank,
    session: Any,
    collection: Collection,
    own: OwnCode,
) -> NoReturn:
    """Become the rank: never returns into the frames of the host below.

    Args:
        channel: to the controller.
        files: descriptors of :class:`pytest_ddp.launch.rankfiles.RankFiles`, of
            :class:`pytest_ddp.launch.streams.Streams`, and for a rank that serves the rendezvous
            from its birth on, the listening socket.
        order: its place.
        session: pytest's, of the host.
        collection: collects test files.
        own: the user's plugins and conftests.
    """
    with contextlib.suppress(PermissionError):  # a spawned rank leads its session already
        os.setsid()
    listening = [files.pop()] if order.serve_store else []
    stacks, stacks_of_children, page, trace = map(memfile.path_of, files[:4])
    faults.install(stacks, stacks_of_children)
    forks.watch()
    try:
        _look_for_tempdir()
        remains.leave_to_others(order.folder)
        _own_tmp_path_base(session.config, order)
        *streams, log = files[4:]
        output.capture_afresh(session.config, order.world.world_size, streams)
        live_logs = LiveLogs(session.config, log)
        environment = RankEnvironment()
        environment.apply(order.environment)
        seeding.unseed()
        made = instruments.make(page, trace, order)
        for descriptor in (*files[:4], *streams):
            os.close(descriptor)
        made.group.journal.root = f"{session.config.rootpath}/"
        landmarks.install(made.lifecycle)
        stores.watch()
        functional.watch(made.group.journal)
        measuring = None if order.measured is None else Measuring(order.measured)
        rendezvous = EnvRendezvous()
        rendezvous.begin(listening, serve_now=order.serve_store)
        reporter.stand_in(session.config)
        own.load(session)
        link = Link(channel, made.side_channel, made.surveyor, made.page)
        meets = meeting.begin(order.folder, lambda: link.test)
        made.group.journal.greeters.append(meets.mark)
        junit.stand_in(session.config, link.send)
        session.config.hook.pytest_ddp_rank_begins(
            config=session.config, announce_end=link.announce_end
        )
        if measuring is not None:
            link.save, measuring.tell = measuring.save, link.warn
            session.config.pluginmanager.register(measuring)
        runner = Runner(link, made, order, environment, rendezvous, session, collection, live_logs)
        runner.live()
    except BaseException:
        # Standard error may be a capture file that ends with the rank.
        faults.write(traceback.format_exc())
    faults.leave(1)


def _look_for_tempdir() -> None:
    """Have a temporary directory that was there for the host, and is gone, looked for anew."""
    if tempfile.tempdir is not None and not os.path.isdir(tempfile.tempdir):
        tempfile.tempdir = None


def _own_tmp_path_base(config: Any, order: StartRank) -> None:
    factory = getattr(config, "_tmp_path_factory", None)
    if factory is not None:
        base = Path(config.option.basetemp).parent
        factory._given_basetemp = base / f"ddp-rank{order.rank}-{order.serial}"
        factory._basetemp = None
