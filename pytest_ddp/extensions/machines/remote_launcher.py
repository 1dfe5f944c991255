"""The launcher of ranks on several machines."""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, ClassVar

import pytest

from pytest_ddp.extensions.machines import begin
from pytest_ddp.extensions.machines.engines.engine import Engine, as_role
from pytest_ddp.extensions.machines.machine_messages import (
    ClockMeasured,
    EndSession,
    GpusLeased,
    LeaseGpus,
    MachinesAwaited,
    MachinesFound,
    NodeJoined,
    NodeLost,
    OpenPort,
    PortOpened,
    ReleaseGpus,
    SignalRank,
    Unfit,
)
from pytest_ddp.extensions.machines.rank_layout import MachineGpus
from pytest_ddp.launch import host_process
from pytest_ddp.launch.gpus import LeaseError
from pytest_ddp.launch.launcher import Event, HostDiedError, Launcher, NoRankError
from pytest_ddp.launch.rank_process import RankProcess
from pytest_ddp.launch.rendezvous import Port
from pytest_ddp.launch.streams import PieceDisplay
from pytest_ddp.outcome.outcome import Machine, ranks_text
from pytest_ddp.protocol.channel import Channel
from pytest_ddp.protocol.host_messages import Clock, Session, World
from pytest_ddp.protocol.messages import Message
from pytest_ddp.settings.rules import option_error
from pytest_ddp.system.stdlib import os, socket, subprocess, time
from pytest_ddp.system.tempfiles import SessionFolder

REMOTE_LAUNCHER: pytest.StashKey[RemoteLauncher] = pytest.StashKey()
"""The launcher of a session on several machines, once it is started."""
_COORDINATOR = "pytest_ddp.extensions.machines.main"
_ANSWER_LIMIT = 20.0
"""Seconds for a machine to answer, as with a port; it takes a round trip."""
_FIND_LIMIT = 60.0
"""Seconds for an engine to find its machines; a cluster takes a few to answer."""
_A_MOMENT = 0.2
_COORDINATOR_END = 40.0
"""Seconds for the coordinator to end all agents, including those that still start."""


def start(config: pytest.Config, session: Session, display: PieceDisplay) -> RemoteLauncher:
    """Start the coordinator of this session, and wait for the agents that its engine starts.

    Raises:
        pytest.UsageError: agents cannot be started on other machines.
        NoRankError: there was a coordinator already, and all agents have ended with it.
    """
    if REMOTE_LAUNCHER in config.stash:
        raise NoRankError("the coordinator of the machines has ended, and all agents with it")
    engine = config.stash[begin.ENGINE]
    remote_launcher = config.stash[REMOTE_LAUNCHER] = RemoteLauncher(session, display, engine)
    try:
        remote_launcher.wait_for_agents(functools.partial(_say, config))
    except (NoRankError, HostDiedError) as error:
        remote_launcher.close()
        raise option_error(f"--ddp-machines={engine.name}: {error}") from None
    except BaseException:
        remote_launcher.close()
        raise
    return remote_launcher


def gpus(config: pytest.Config) -> tuple[MachineGpus, ...]:
    """Return the GPUs of each machine of this session, once all machines are there."""
    return config.stash[REMOTE_LAUNCHER].gpus()


def _say(config: pytest.Config, text: str) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.ensure_newline()
        reporter.write_line(f"ddp: {text}")


@dataclass(eq=False)
class RemoteRank(RankProcess):
    """A rank behind an agent, of another machine or of this one; reached by messages."""

    remote_launcher: RemoteLauncher = field(kw_only=True)
    coordinator: Channel = field(kw_only=True)
    refuses_terminal: ClassVar[str] = "no terminal reaches ranks of other machines (--ddp-machines)"

    @property
    def machine(self) -> Machine:
        return self.remote_launcher.machine(self.world.nodes[self.rank])

    def signal(self, number: int) -> None:
        if not self.gone:
            self.coordinator.send(SignalRank(self.serial, number))

    def glance(self) -> tuple[str, float]:
        """Return nothing: the rank's process id may belong to another process on this machine."""
        return "", 0.0

    def kill_group(self) -> None:
        """Do nothing: the rank's agent kills the group when the connection ends."""


class RemoteLauncher(Launcher):
    """A launcher whose host is the coordinator."""

    is_local: ClassVar[bool] = False

    def __init__(self, session: Session, display: PieceDisplay, engine: Engine) -> None:
        """Start the coordinator; agents connect while the controller goes on collecting.

        Args:
            session: the session, as every launcher gets it.
            display: shows output, as for every launcher.
            engine: what provides the machines.
        """
        self._engine = engine
        self.machines = 0 if engine.starts_agents else engine.nodes
        """How many machines there are; 0 while the engine has not found them."""
        self._nodes: dict[int, NodeJoined] = {}
        self._clocks: dict[int, Clock] = {}
        """Clocks of machines other than this one."""
        self._lost: dict[int, str] = {}
        self._known: dict[int, Machine] = {}
        """Records that are made of these three, until one of them changes."""
        self._ports: dict[int, deque[int]] = {}
        self._leases = 0
        self._leased: dict[int, GpusLeased] = {}
        self._awaited = ""
        """What the engine waits for, by its last message."""
        self._problem = ""
        """Why no test can run."""
        super().__init__(session, display)

    def start_host(
        self, theirs: socket.socket, folder: SessionFolder, log: IO[bytes] | None
    ) -> subprocess.Popen[bytes]:
        role = {"engine": as_role(self._engine)}
        return host_process.start(_COORDINATOR, role, theirs, folder, log, os.environ)

    def wait_for_agents(self, say: Callable[[str], object]) -> None:
        """Wait until all agents have connected that the engine starts; others may connect later.

        Args:
            say: shows what an engine waits for, which may be minutes.

        Raises:
            NoRankError: an agent does not connect, or its machine differs from this one.
            HostDiedError: the coordinator has died.
        """
        said, deadline = "", time.monotonic() + _FIND_LIMIT
        while not self.machines:
            if (left := deadline - time.monotonic()) <= 0:
                last = self.host_output().rpartition("\n")[2] or "nothing"
                raise NoRankError(f"no machines were found within {_FIND_LIMIT:.0f} s: {last}")
            self.poll(left)
            if self._awaited:
                deadline = time.monotonic() + _FIND_LIMIT
            if self._awaited not in ("", said):
                said = self._awaited
                say(said)
            self._awaited = ""
        while self._engine.starts_agents and len(self._nodes) < self.machines:
            self.poll(None)

    def gpus(self) -> tuple[MachineGpus, ...]:
        """The GPUs of each machine; waits until all machines have joined.

        Raises:
            NoRankError: an agent does not connect, or its machine differs from this one.
        """
        while len(self._nodes) < self.machines:
            self.poll(None)
        nodes = [self._nodes[node] for node in range(self.machines)]
        return tuple(
            MachineGpus(self._name_of(one.node), len(one.gpus), one.gpu_kind) for one in nodes
        )

    @contextlib.contextmanager
    def lease(
        self, world: World, ranks_per_gpu: int, limit: float, holder: str
    ) -> Iterator[tuple[int, ...]]:
        """Hold GPUs for the ranks of a world in a block, each on its machine; the GPU of each rank.

        Machines are leased one after the other, in an order that all sessions share: otherwise two
        sessions could each hold what the other waits for.

        Raises:
            LeaseError: they did not become free within ``limit`` seconds.
            NoRankError: a machine is lost.
        """
        deadline = time.monotonic() + limit
        holder = f"{holder} of pytest on {self._nodes[0].name}"
        found: dict[int, Iterator[int]] = {}
        with contextlib.ExitStack() as held:
            for node in sorted({*world.nodes}, key=self._turn_of):
                self._leases += 1
                left = max(0.0, deadline - time.monotonic())
                place = self._leases, node, world.nodes.count(node)
                lease = LeaseGpus(*place, ranks_per_gpu, left, holder)
                held.callback(self._channel.send, ReleaseGpus(lease.lease, node))
                self._channel.send(lease)
                found[node] = iter(self._wait_for_gpus(lease))
            yield tuple(next(found[node]) for node in world.nodes)

    def _turn_of(self, node: int) -> tuple[str, tuple[str, ...]]:
        # The numbers of machines are those of one session.
        return self._nodes[node].name, self._nodes[node].gpus

    def _wait_for_gpus(self, lease: LeaseGpus) -> tuple[int, ...]:
        deadline = time.monotonic() + lease.limit + _ANSWER_LIMIT
        while (answer := self._leased.pop(lease.lease, None)) is None:
            if lease.node in self._lost:
                raise NoRankError(self._lost[lease.node])
            if (left := deadline - time.monotonic()) <= 0:
                raise NoRankError(f"{self._name_of(lease.node)} did not answer about its GPUs")
            self.poll(left)
        if answer.refusal:
            advice = "Wait until they have ended, or give the test a longer timeout."
            raise LeaseError(f"{self._name_of(lease.node)}: {answer.refusal}\n  {advice}")
        return answer.devices

    def _new_process(self, world: World, number: int, channel: Channel) -> RankProcess:
        return RemoteRank(
            self._serials, world, number, channel, remote_launcher=self, coordinator=self._channel
        )

    def new_port(self, world: World) -> Port:
        """Have a port opened where the ranks of a world can meet next, on the machine of rank 0.

        Raises:
            NoRankError: that machine is lost, or does not answer.
        """
        node = world.nodes[0]
        self._channel.send(OpenPort(node))
        deadline = time.monotonic() + _ANSWER_LIMIT
        while not self._ports.get(node):
            if node in self._lost:
                raise NoRankError(self._lost[node])
            if (left := deadline - time.monotonic()) <= 0:
                raise NoRankError(f"node {node} opened no port within {_ANSWER_LIMIT:.0f} s")
            self.poll(left)
        return Port(self._nodes[node].address, self._ports[node].popleft())

    def where(self, world: World) -> str:
        ranks: dict[int, list[int]] = {}
        for rank, node in enumerate(world.nodes):
            ranks.setdefault(node, []).append(rank)
        places = (f"{ranks_text(mates)} on {self._name_of(node)}" for node, mates in ranks.items())
        return f"{', '.join(places)}."

    def machine(self, node: int) -> Machine:
        """The record of a node, cached since each report of a rank there needs it."""
        if (known := self._known.get(node)) is None:
            clock = self._clocks.get(node)
            known = self._known[node] = Machine(self._name_of(node), clock, node in self._lost)
        return known

    def _name_of(self, node: int) -> str:
        joined = self._nodes.get(node)
        return f"node {node}" if joined is None else f"node {node} ({joined.name})"

    def poll(self, timeout: float | None) -> list[Event]:
        """Wait for news of ranks; see :meth:`Launcher.poll`.

        Raises:
            NoRankError: the machines cannot run tests together.
        """
        if self._problem:
            raise NoRankError(self._problem)
        return super().poll(timeout)

    def _hear_other(self, message: Message) -> Iterator[Event]:
        self._known.clear()
        match message:
            case MachinesAwaited(what):
                self._awaited = what
            case MachinesFound(nodes):
                self.machines, self._awaited = nodes, ""
            case NodeJoined(node):
                self._nodes[node] = message
            case ClockMeasured(node, clock):
                self._clocks[node] = clock
            case GpusLeased(lease):
                self._leased[lease] = message
            case NodeLost(node, why):
                self._lost[node] = why
            case PortOpened(node, number):
                self._ports.setdefault(node, deque()).append(number)
            case Unfit(problem):
                self._problem = problem
                raise NoRankError(problem)
            case _:
                yield from super()._hear_other(message)

    def _is_looking(self) -> bool:
        """Whether the coordinator still looks for machines, or for its own address, and has no
        agents."""
        for message, _ in self._channel.receive_available():
            if isinstance(message, MachinesAwaited | MachinesFound):
                self._awaited = message.what if isinstance(message, MachinesAwaited) else ""
        return bool(self._awaited) or not self.machines

    def _end_host(self) -> None:
        self._channel.send(EndSession(self.exit_code))
        deadline = time.monotonic() + _COORDINATOR_END
        while not self._is_looking() and time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_A_MOMENT)
                break
        self._channel.close()
        self._process.kill()
        self._process.wait()
        self._problem = (
            self._problem or "the coordinator of the machines has ended, and all agents with it"
        )
