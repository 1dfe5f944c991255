"""The agent of one machine: it starts the host and the ranks there, as the coordinator orders.

It decides nothing about tests. It holds for its ranks what a launcher holds on one machine, and
forwards it over the connection: messages both ways, output, contents of files. It ends with the
connection.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import cast

from pytest_ddp.extensions.machines import clocks, version_check
from pytest_ddp.extensions.machines.agent import agent_gpus
from pytest_ddp.extensions.machines.agent.local_ranks import CoverageData, LocalRank, Ports
from pytest_ddp.extensions.machines.agent_connection import AgentConnection, FrameKind, WireFrame
from pytest_ddp.extensions.machines.machine_messages import LeaseGpus, ReleaseGpus
from pytest_ddp.launch.host_process import start_host
from pytest_ddp.launch.rank_process import WROTE_GARBAGE
from pytest_ddp.protocol.channel import Channel, ChannelError, dumps, is_kind, loads
from pytest_ddp.protocol.host_messages import (
    Collected,
    HostReady,
    KillRank,
    RankExited,
    RankStarted,
    Session,
    StartRank,
)
from pytest_ddp.protocol.messages import Done, Finish, Message, RankReady, RunTest
from pytest_ddp.system import processes, tempfiles
from pytest_ddp.system.stdlib import json, os, selectors, signal, socket, subprocess, time
from pytest_ddp.system.tempfiles import SessionFolder

_SILENCE = 10.0
"""Seconds without a sign of life after which the coordinator is given up."""
_HOST_END = 12.0
"""Seconds for a host to end, as in :mod:`pytest_ddp.launch.launcher`."""
_SEND_LIMIT = 10.0
"""Seconds for what is sent to the coordinator at the end; the coordinator waits a little longer."""
_LOOK = 0.2
"""Seconds between two looks at what ranks leave in files."""
_CLOSE_LOOK = 0.01
"""Seconds between two such looks while the controller waits for stacks."""
_CLOSE_LOOK_FOR = 0.6
_A_MOMENT = 0.005
_GONE = 1
"""Exit code where pytest's is not known."""


class Agent:
    """Runs ranks on this machine for the coordinator, as long as the connection lasts."""

    def __init__(
        self,
        connection: AgentConnection,
        node: int,
        nodes: int | None,
        environment: dict[str, str],
        lifeline: int | None = None,
    ) -> None:
        """Take the connection to the coordinator.

        Args:
            connection: the connection, which the coordinator has accepted.
            node: the number of this machine.
            nodes: the number of machines by this machine's launcher; None if the coordinator has
                started this agent.
            environment: variables for hosts, besides those of this process.
            lifeline: a descriptor at whose end this agent ends, since its starter is gone; None
                for an agent without one.
        """
        self._line, self._node, self._nodes = connection, node, nodes
        self._environment = environment
        self._folder = SessionFolder()
        self._left = CoverageData()
        self._leases = agent_gpus.Leases()
        self._log = os.fdopen(tempfiles.create("pytest-ddp host"), "w+b")
        self._briefing: list[Session | Collected] = []
        self._ranks: dict[int, LocalRank] = {}
        self._ports = Ports(connection.own_address)
        self._basetemp = ""
        """The temporary directory of pytest on node 0."""
        self._is_ready = False
        self._code: int | None = None
        self.gone = ""
        """Why this agent has ended without an order; empty if it had one."""
        self.refused = ""
        """Why the coordinator has rejected this agent; empty if it has not."""
        self._looks_closely_until = 0.0
        self._next_look = 0.0
        self._host: subprocess.Popen[bytes] | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ, self._receive_from_coordinator)
        if lifeline is not None:
            cut = functools.partial(self._see_lifeline, lifeline)
            self._selector.register(lifeline, selectors.EVENT_READ, cut)

    def live(self) -> int:
        """Work until pytest or the connection ends; return the exit code."""
        facts = {
            "node": self._node,
            "nodes": self._nodes,
            "name": socket.gethostname(),
            "address": self._line.own_address,
            "versions": version_check.versions(),
            **agent_gpus.found(),
        }
        self._line.send(WireFrame(FrameKind.JOIN, data=json.dumps(facts).encode()))
        try:
            while self._code is None and not self._line.at_end:
                self._turn()
                if self._line.silent_for() > _SILENCE:
                    self._line.at_end = f"no sign of life for {_SILENCE:.0f} s"
        finally:
            self._end()
        if self._code is None:
            self.gone = self._line.at_end
            return _GONE
        return self._code

    def _turn(self) -> None:
        unsent = self._line.unsent or any(rank.channel.unsent for rank in self._ranks.values())
        now = time.monotonic()
        closely = now < self._looks_closely_until
        look = min(_CLOSE_LOOK if closely else _LOOK, self._leases.patience)
        for key, _ in self._selector.select(_A_MOMENT if unsent else look):
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        for rank in self._ranks.values():
            rank.channel.flush()
        for answer in self._leases.answers():
            self._send(answer)
        if time.monotonic() >= self._next_look:
            for rank in self._ranks.values():
                self._send_all(rank, trace=closely)
            self._next_look = time.monotonic() + look
        self._line.flush()
        self._line.beat()

    def _send_all(self, rank: LocalRank, *, page: bool = True, trace: bool = False) -> None:
        for frame in rank.left(page=page, trace=trace):
            self._line.send(frame)

    def _send(self, message: Message) -> None:
        self._line.send(WireFrame(FrameKind.MESSAGE, data=dumps(message).encode()))

    # ------------------------------------------------------------------ the coordinator

    def _receive_from_coordinator(self) -> None:
        for frame in self._line.receive():
            self._take(frame)

    def _see_lifeline(self, lifeline: int) -> None:
        if not os.read(lifeline, 1):
            self._line.at_end = self._line.at_end or "the starter of this agent has ended"

    def _take(self, frame: WireFrame) -> None:
        rank = self._ranks.get(frame.serial)
        match frame.kind:
            case FrameKind.MESSAGE if frame.serial == 0:
                self._take_from_controller(loads(frame.data))
            case FrameKind.MESSAGE if rank is not None:
                self._pass_on(rank, frame.data)
            case FrameKind.SIGNAL if rank is not None:
                if rank.pid is not None:
                    # The host has not reported that it reaped the rank: the pid is not reused.
                    os.kill(rank.pid, frame.part)
                self._looks_closely_until = time.monotonic() + _CLOSE_LOOK_FOR
            case FrameKind.HEARTBEAT:
                if answer := clocks.answer(frame.data, self._line.received_at):
                    self._line.send(WireFrame(FrameKind.HEARTBEAT, data=answer))
            case FrameKind.PORT:
                self._line.send(WireFrame(FrameKind.PORT, part=self._ports.open()))
            case FrameKind.FILES:
                if other := version_check.other_file(json.loads(frame.data)):
                    self._refuse(f"has other test files: {other}")
            case FrameKind.PROBLEM:
                self.refused, self._code = frame.data.decode(), _GONE
            case FrameKind.END:
                self._code = frame.part

    def _refuse(self, why: str) -> None:
        self._line.send(WireFrame(FrameKind.PROBLEM, data=why.encode()))

    def _take_from_controller(self, message: Message) -> None:
        match message:
            case Session():
                self._basetemp = message.basetemp
                self._briefing = [self._as_here(message)]
                self._start_host()
            case Collected():
                self._briefing.append(message)
                self._channel.send(message)
            case StartRank():
                self._start(replace(message, measured=self._left.redirected(message.measured)))
            case KillRank():
                self._channel.send(message)
            case LeaseGpus() | ReleaseGpus():
                self._leases.take(message)
            case _:
                raise AssertionError(f"{message} is not for an agent")

    def _as_here(self, session: Session) -> Session:
        measured = self._left.redirected(session.measured)
        return replace(session, basetemp=self._here(session.basetemp), measured=measured)

    def _here(self, path: str) -> str:
        """A path below pytest's temporary folder, in a folder of this machine."""
        if self._node == 0 or not path.startswith(self._basetemp):
            return path
        return f"{self._folder.path}/tmp{path.removeprefix(self._basetemp)}"

    # ------------------------------------------------------------------ the host

    def _start_host(self) -> None:
        self._channel, theirs = Channel.pair()
        self._is_ready = False
        self._host = start_host(theirs, self._folder, self._log, self._environment)
        self._watch = os.pidfd_open(self._host.pid)
        self._selector.register(self._channel, selectors.EVENT_READ, self._receive_from_host)
        self._selector.register(self._watch, selectors.EVENT_READ, self._reap_host)
        for message in self._briefing:
            self._channel.send(message)

    def _receive_from_host(self) -> None:
        for message, _ in self._channel.receive_available():
            match message:
                case HostReady():
                    self._is_ready = True
                    self._send(message)
                case RankStarted(serial, pid):
                    self._ranks[serial].pid = pid
                    self._send(message)
                case RankExited(serial):
                    self._part_with(self._ranks[serial], message)
                case _:
                    raise AssertionError(f"{message} is not for an agent")
        if self._channel.at_end:
            self._selector.unregister(self._channel)

    def _reap_host(self) -> None:
        """Report the end of the host, and of its ranks with it, and start another host."""
        assert self._host is not None
        if not self._channel.at_end:
            self._receive_from_host()
        if not self._channel.at_end:
            self._selector.unregister(self._channel)
        self._channel.close()
        self._selector.unregister(self._watch)
        os.close(self._watch)
        code = self._host.wait()
        if not self._is_ready:
            self._host = None
            self._refuse(f"has no host: it ended with code {code}.\n{self._last_words()}")
            return
        for rank in list(self._ranks.values()):
            if rank.pid is not None:
                processes.kill_group(rank.pid)
            why = f"went with the host of node {self._node}, which ended with code {code}"
            self._part_with(rank, RankExited(rank.serial, -signal.SIGKILL, why))
        self._start_host()

    def _last_words(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace").strip()

    # ------------------------------------------------------------------ ranks

    def _start(self, start: StartRank) -> None:
        rank = self._ranks[start.serial] = LocalRank(start)
        with self._ports.for_start(start) as port:
            here = replace(start, folder=self._folder.path, serve_store=bool(port))
            self._channel.send(here, (*rank.descriptors, *port))
        rank.passed_on()
        receive = functools.partial(self._receive_from_rank, rank)
        self._selector.register(rank.channel, selectors.EVENT_READ, receive)
        for part, descriptor in rank.sources().items():
            read = functools.partial(self._read_stream, rank, part, descriptor)
            self._selector.register(descriptor, selectors.EVENT_READ, read)

    def _pass_on(self, rank: LocalRank, body: bytes) -> None:
        if is_kind(RunTest, body):
            self._run_test(rank, cast("RunTest", loads(body)))
        elif is_kind(Session, body):
            rank.channel.send(self._as_here(cast("Session", loads(body))))
        else:
            if is_kind(Finish, body):
                rank.begin()
            rank.channel.send_body(body)

    def _run_test(self, rank: LocalRank, test: RunTest) -> None:
        rank.begin()
        with self._ports.for_test(rank, test) as port:
            here = replace(test, tmp_path=self._here(test.tmp_path), serve_store=bool(port))
            rank.channel.send(here, port)

    def _receive_from_rank(self, rank: LocalRank) -> None:
        for body in self._bodies(rank):
            self._line.send(WireFrame(FrameKind.MESSAGE, rank.serial, data=body))
        if rank.channel.at_end:
            self._selector.unregister(rank.channel)
            self._line.send(WireFrame(FrameKind.CLOSED, rank.serial))

    def _bodies(self, rank: LocalRank) -> list[bytes]:
        bodies: list[bytes] = []
        try:
            bodies = rank.channel.receive_bodies()
            for body in bodies:
                if is_kind(RankReady, body):
                    rank.captures(rank.channel.take_descriptors(loads(body)))
        except (ChannelError, OSError, ValueError) as error:
            # The test wrote into the plugin's descriptor: no further message can be trusted.
            bodies = [*error.before] if isinstance(error, ChannelError) else []
            rank.channel.at_end = True
            rank.why = WROTE_GARBAGE
            self._channel.send(KillRank(rank.serial))
        if bodies:
            # Files go first, as messages may refer to them. After the end of a test the page is
            # not read, and it is ten times as long as the messages.
            has_ended = all(is_kind(Done, body) for body in bodies)
            self._send_all(rank, page=not has_ended, trace=True)
        return bodies

    def _read_stream(self, rank: LocalRank, part: int, descriptor: int) -> None:
        for frame in rank.written(part):
            self._line.send(frame)
        if part not in rank.sources():
            self._selector.unregister(descriptor)

    def _part_with(self, rank: LocalRank, exited: RankExited) -> None:
        """Send everything that a rank has left, then report its end."""
        if not rank.channel.at_end:
            self._receive_from_rank(rank)
        if not rank.channel.at_end:
            self._selector.unregister(rank.channel)
        known = self._selector.get_map()
        for descriptor in rank.sources().values():
            if descriptor in known:
                self._selector.unregister(descriptor)
        for frame in rank.rest():
            self._line.send(frame)
        self._send(replace(exited, why=rank.why or exited.why))
        del self._ranks[rank.serial]
        rank.close()

    # ------------------------------------------------------------------ the end

    def _end(self) -> None:
        """End the host, which ends its ranks, and remove what is left."""
        if self._host is not None:
            self._channel.close()
            try:
                self._host.wait(_HOST_END)
            except subprocess.TimeoutExpired:
                self._host.kill()
                self._host.wait()
            for rank in self._ranks.values():
                if rank.pid is not None:
                    processes.kill_group(rank.pid)
        self._leases.close()
        if self._code is not None:
            self._send_home()
        self._line.close()
        self._left.close()
        self._folder.close()

    def _send_home(self) -> None:
        """Send what ranks leave for a coverage report, now that all of them are gone."""
        for frame in self._left.frames():
            self._line.send(frame)
        deadline = time.monotonic() + _SEND_LIMIT
        while self._line.unsent and time.monotonic() < deadline:
            signal.sigtimedwait([], _A_MOMENT)
            self._line.flush()
