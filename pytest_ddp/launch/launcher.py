"""Starts host and ranks, receives their messages and ends them, for one controller."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, ClassVar, TypeAlias

from pytest_ddp.launch import gpus, host_process, rendezvous
from pytest_ddp.launch.rank_process import LOST_CHANNEL, WROTE_GARBAGE, RankProcess
from pytest_ddp.launch.rendezvous import Port
from pytest_ddp.launch.streams import LogSocket, OutputPipe, PieceDisplay, StreamReader
from pytest_ddp.protocol.channel import Channel, ChannelError
from pytest_ddp.protocol.host_messages import (
    Collected,
    HostReady,
    KillRank,
    RankExited,
    RankStarted,
    Session,
    StartRank,
    World,
)
from pytest_ddp.protocol.messages import Finish, FromRank, Message, RankReady
from pytest_ddp.system import tempfiles
from pytest_ddp.system.stdlib import os, selectors, socket, subprocess, time
from pytest_ddp.system.tempfiles import SessionFolder

_HOST_END = 16.0
"""Seconds that the host gets to end all ranks and itself: more than it waits for them."""
_LOST_LIMIT = 0.3
"""Seconds that a rank may live after its channel has closed: a death takes milliseconds."""
_LOOK_INTERVAL = 0.5
"""Seconds between two checks for ranks that are stuck while they die."""


class HostDiedError(Exception):
    """The host's process ended unexpectedly; the text is its output."""


class NoRankError(Exception):
    """A rank's process ended before it could run a test; the text has the reason."""


class OrphanedError(Exception):
    """The process that this controller works for (xdist's main process) is gone."""


@dataclass(frozen=True, slots=True)
class RankReaped:
    """The process of a rank has ended and is reaped."""

    returncode: int


Event: TypeAlias = tuple[RankProcess, FromRank | RankReaped]


def _own_reason(process: RankProcess) -> str:
    """Why a rank ended itself, as a predicate; empty for another end."""
    return LOST_CHANNEL if process.files.mark().cut_off else ""


class Launcher:
    """The host and the ranks of one controller, and all their descriptors.

    A subclass may start the host otherwise (:meth:`start_host`), or reach ranks elsewhere: then it
    also overrides :meth:`lease`, :meth:`where`, :meth:`new_port`, ``_new_process``, ``_hear_other``
    and ``_end_host``.
    """

    is_local: ClassVar[bool] = True
    """Whether the host is a process of this machine: a new one can take its place when it has died,
    and ranks can be started before it is ready."""

    def __init__(self, session: Session, display: PieceDisplay) -> None:
        """Start the host; it imports torch while the controller goes on collecting.

        Args:
            session: the first message to the host.
            display: shows output and log records of ranks while they run.
        """
        self._session = session
        self._log = os.fdopen(tempfiles.create("pytest-ddp host"), "w+b")
        self._folder = SessionFolder()
        self._channel, theirs = Channel.pair()
        self._ranks: dict[int, RankProcess] = {}
        """All ranks that run, by their serial numbers."""
        self._pools: dict[World, list[RankProcess]] = {}
        self.ready: HostReady | None = None
        self.had_rank = False
        """Whether a rank was ever ready."""
        self.exit_code = 1
        """Exit code of pytest, as far as it is known, for processes that end with the same."""
        self._serials, self._next_look = 0, 0.0
        self._unsent: set[Channel | RankProcess] = set()
        """Ranks with full sockets, which are watched until they are writable."""
        self._cut_off: set[RankProcess] = set()
        """Ranks with a closed channel."""
        self._channel.when_full = functools.partial(self._unsent.add, self._channel)
        # What the host itself prints is kept in a file, to be shown if it dies.
        log = self._log if not session.verbose_output else None
        self._process = self.start_host(theirs, self._folder, log)
        self._selector = selectors.DefaultSelector()
        self._display = display
        self._listening = StreamReader(self._selector, display)
        self._selector.register(self._channel, selectors.EVENT_READ, self._channel)
        self._host_watch = os.pidfd_open(self._process.pid)
        self._selector.register(self._host_watch, selectors.EVENT_READ, HostDiedError)
        self._channel.send(session)

    def start_host(
        self, theirs: socket.socket, folder: SessionFolder, log: IO[bytes] | None
    ) -> subprocess.Popen[bytes]:
        """Start what starts ranks.

        Args:
            theirs: its end of our channel, which is closed here.
            folder: the session's folder.
            log: file for its output; None for the terminal.
        """
        return host_process.start_host(theirs, folder, log)

    def _new_process(self, world: World, number: int, channel: Channel) -> RankProcess:
        return RankProcess(self._serials, world, number, channel)

    def lease(
        self, world: World, ranks_per_gpu: int, limit: float, holder: str
    ) -> contextlib.AbstractContextManager[tuple[int, ...]]:
        """Hold a GPU for each rank of a world in a block; the index of that of each rank.

        Args:
            world: of the ranks.
            ranks_per_gpu: how many ranks may share a GPU.
            limit: seconds to wait for other processes at most.
            holder: is shown to processes that wait in vain, such as a node id.

        Raises:
            LeaseError: they did not come free in time.
        """
        return gpus.lease(world.world_size, limit=limit, holder=holder, ranks_per_gpu=ranks_per_gpu)

    def where(self, world: World) -> str:
        """The machines of a world's ranks, as a sentence; empty in a session on one machine."""
        return ""

    def new_port(self, world: World) -> Port:
        """A port for the next rendezvous of a world's ranks."""
        return rendezvous.open_port(world)

    @property
    def measures(self) -> bool:
        """Whether ranks have coverage to save."""
        return self._session.measured is not None

    def watch_parent(self) -> None:
        """Make :meth:`poll` raise :class:`OrphanedError` once our own parent is gone."""
        with contextlib.suppress(ProcessLookupError):
            watch = os.pidfd_open(os.getppid())
            self._selector.register(watch, selectors.EVENT_READ, OrphanedError)

    def collected(self, message: Collected) -> None:
        """Send the host the list of files with ddp tests, after the collection."""
        self._channel.send(message)

    # ------------------------------------------------------------------ ranks

    def pool(self, world: World) -> list[RankProcess]:
        """The ranks of a world that were started and not forgotten, in order of rank."""
        return sorted(self._pools.get(world, ()), key=lambda process: process.rank)

    def start(
        self,
        world: World,
        number: int,
        environment: dict[str, str],
        serves: tuple[int, ...] = (),
    ) -> RankProcess:
        """Start a process for a rank that has none; it sends ``RankReady`` when it is up.

        Args:
            world: its world, for its whole life.
            number: its rank.
            environment: its torchrun variables at its start.
            serves: the socket of their port, for the rank that serves it from its start on.
        """
        self._serials += 1
        channel, theirs = Channel.pair()
        process = self._new_process(world, number, channel)
        channel.when_full = functools.partial(self._unsent.add, process)
        process.environment = environment
        order = StartRank(
            process.serial,
            number,
            world,
            environment,
            self._folder.path,
            bool(serves),
            self._session.traces,
            self._session.measured,
        )
        with theirs:
            streams = process.streams.descriptors
            descriptors = (*process.files.descriptors, *streams, *serves)
            self._channel.send(order, (theirs.fileno(), *descriptors))
        self._listening.add(process.streams)
        if self._session.spawns:
            process.send(self._session)
        self._ranks[process.serial] = process
        self._pools.setdefault(world, []).append(process)
        self._selector.register(channel, selectors.EVENT_READ, process)
        return process

    def kill(self, process: RankProcess) -> None:
        """End a rank with its children; ``RankReaped`` follows."""
        self._channel.send(KillRank(process.serial))

    def forget(self, process: RankProcess) -> None:
        """Drop a rank that is gone; the next test then starts a new one."""
        del self._ranks[process.serial]
        self._pools[process.world].remove(process)
        self._unwatch(process)
        self._unsent.discard(process)
        self._cut_off.discard(process)
        self._listening.remove(process.streams)
        process.close()

    def _unwatch(self, process: RankProcess) -> None:
        # One poll may notice an end twice: by the rank's own channel, and by the host's.
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(process.channel)

    def ranks(self) -> list[RankProcess]:
        """All ranks that were started and not forgotten, with those that died since."""
        return list(self._ranks.values())

    # ------------------------------------------------------------------ events

    def poll(self, timeout: float | None) -> list[Event]:
        """Wait for messages and ends of ranks, at most ``timeout`` seconds; None for no limit.

        Raises:
            HostDiedError: the host has died, and with it every rank.
            OrphanedError: see :meth:`watch_parent`.
        """
        self._watch_unsent()
        if self._cut_off:
            timeout = _LOST_LIMIT if timeout is None else min(timeout, _LOST_LIMIT)
        due = self._display.due_in()
        timeout = due if timeout is None else min(timeout, due)
        events: list[Event] = []
        for key, mask in self._selector.select(None if timeout == math.inf else timeout):
            if key.data in (HostDiedError, OrphanedError):
                # Its last messages show how far it got.
                list(self._hear_host())
                raise key.data(self.host_output())
            if isinstance(key.data, OutputPipe | LogSocket):
                self._listening.hear(key.data)
                continue
            source: Channel | RankProcess = key.data
            channel = source if isinstance(source, Channel) else source.channel
            if mask & selectors.EVENT_WRITE:
                channel.flush()
            if mask & selectors.EVENT_READ:
                events += self._hear(source)
        self._kill_lost()
        self._kill_dying()
        self._display.show()
        return events

    def _kill_lost(self) -> None:
        """End ranks with a channel that has been closed for longer than a death takes."""
        for process in self._cut_off:
            if not process.gone and time.monotonic() > process.lost + _LOST_LIMIT:
                process.condemned = process.condemned or LOST_CHANNEL
                self.kill(process)

    def _kill_dying(self) -> None:
        """End ranks that hang in the handler of a fatal signal."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_INTERVAL
        for process in self.ranks():
            if not process.gone and process.is_stuck_in_death(now):
                self.kill(process)

    def _watch_unsent(self) -> None:
        for source in list(self._unsent):
            self._watch_room(source, source if isinstance(source, Channel) else source.channel)

    def _watch_room(self, process: Channel | RankProcess, channel: Channel) -> None:
        self._unsent.discard(process)
        if channel.fileno() not in self._selector.get_map():
            return
        events = selectors.EVENT_READ
        if channel.unsent:
            events |= selectors.EVENT_WRITE
            self._unsent.add(process)
        self._selector.modify(channel, events, process)

    def _hear(self, process: Channel | RankProcess) -> Iterator[Event]:
        if isinstance(process, Channel):
            yield from self._hear_host()
        else:
            yield from self._hear_rank(process, process.channel.receive_some)

    def _hear_rank(
        self, process: RankProcess, receive: Callable[[], Sequence[tuple[Message, list[int]]]]
    ) -> Iterator[Event]:
        messages: Sequence[tuple[Message, list[int]]] = ()
        try:
            messages = receive()
        except (ChannelError, OSError, ValueError) as error:
            # The test wrote into our descriptor: nothing after that can be trusted.
            messages = error.before if isinstance(error, ChannelError) else ()
            process.channel.at_end = True
            process.condemned = WROTE_GARBAGE
            self.kill(process)
        for message, descriptors in messages:
            if isinstance(message, RankReady):
                process.ready = self.had_rank = True
                process.captured = dict(zip(message.captured, descriptors, strict=True))
            yield process, message  # type: ignore[misc]
        if process.channel.at_end:
            # The rank dies, or it lives without its channel and is useless.
            self._unwatch(process)
            process.lost = process.lost or time.monotonic()
            self._cut_off.add(process)

    def _hear_host(self) -> Iterator[Event]:
        for message, _ in self._channel.receive_available():
            match message:
                case HostReady():
                    self.ready = message
                case RankStarted():
                    if (process := self._ranks.get(message.serial)) is not None:
                        process.pid = message.pid
                case RankExited():
                    if (process := self._ranks.get(message.serial)) is not None:
                        # First what the rank sent before its end, which is still in its channel.
                        yield from self._last_messages(process)
                        own_reason = _own_reason(process)
                        process.condemned = process.condemned or message.why or own_reason
                        process.returncode = message.returncode
                        yield process, RankReaped(message.returncode)
                case _:
                    yield from self._hear_other(message)

    def _hear_other(self, message: Message) -> Iterator[Event]:
        raise AssertionError(f"{message} is not for the controller")

    def _last_messages(self, process: RankProcess) -> Iterator[Event]:
        if not process.channel.at_end:
            yield from self._hear_rank(process, process.channel.receive_available)

    def wait_until_ready(self) -> None:
        """Wait until the host can start ranks.

        Raises:
            HostDiedError: it died before.
        """
        while self.ready is None:
            self.poll(None)

    def returncode(self) -> int | None:
        """Exit code of a host that has died."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_HOST_END)
        return None

    def host_output(self) -> str:
        """The host's output, for the message on its death."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace").strip()

    def catch_up(self) -> None:
        """Show all output and log records of ranks up to now."""
        self._listening.catch_up()

    # ------------------------------------------------------------------ the end

    def finish(
        self,
        processes: list[RankProcess],
        seconds: float,
        hear: Callable[[RankProcess, FromRank | RankReaped], None],
    ) -> list[Event]:
        """Let idle ranks tear down their wide fixtures and exit.

        Args:
            processes: the ranks.
            seconds: how long to wait for them.
            hear: called with each message at once.

        Returns:
            all messages.
        """
        for process in processes:
            process.send(Finish())
        events: list[Event] = []
        deadline = time.monotonic() + seconds
        while not all(process.gone for process in processes):
            if (left := deadline - time.monotonic()) <= 0:
                break
            arrived = self.poll(left)
            for process, message in arrived:
                hear(process, message)
            events += arrived
        return events

    def close(self) -> None:
        """End and close everything: processes, files, descriptors."""
        # The host first: it ends its ranks properly, and what it leaves is killed below.
        self._end_host()
        self.catch_up()
        for process in self._ranks.values():
            process.kill_group()
            process.close()
        self._ranks = {}
        self._selector.close()
        os.close(self._host_watch)
        self._log.close()
        self._folder.close()

    def _end_host(self) -> None:
        self._channel.close()
        try:
            if self.ready is None:
                # It still imports or collects, and has no ranks that need a proper end.
                self._process.kill()
            self._process.wait(_HOST_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
