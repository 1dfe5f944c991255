"""The coordinator: replaces the host for a launcher on several machines.

It takes the messages of a host, on the same channel, and passes each to the agent of the machine
that it is for. For each rank it holds the descriptors that the launcher has made (channel, files,
streams), and fills them with what the agent sends. It is a process of its own, because it must go
on while a test without ranks keeps the pytest process busy.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from pytest_ddp.extensions.machines import version_check
from pytest_ddp.extensions.machines.agent_connection import (
    AgentConnection,
    AgentListener,
    FrameKind,
    WireFrame,
)
from pytest_ddp.extensions.machines.engines.engine import Engine
from pytest_ddp.extensions.machines.machine_messages import (
    EndSession,
    GpusLeased,
    LeaseGpus,
    NodeJoined,
    NodeLost,
    OpenPort,
    PortOpened,
    ReleaseGpus,
    SignalRank,
    Unfit,
)
from pytest_ddp.extensions.machines.node import Node
from pytest_ddp.extensions.machines.rank_proxy import RankProxy
from pytest_ddp.protocol.channel import Channel, dumps, loads
from pytest_ddp.protocol.host_messages import (
    Collected,
    HostReady,
    KillRank,
    RankExited,
    RankStarted,
    Session,
    StartRank,
)
from pytest_ddp.protocol.messages import Message
from pytest_ddp.system.stdlib import json, selectors, signal, time

SILENCE = 5.0
"""Seconds without a sign of life after which a machine is lost."""
_JOIN_LIMIT = 120.0
"""Seconds for all agents to connect and to have their hosts ready; both import torch first."""
_END_LIMIT = 15.0
"""Seconds that the end of the session waits for agents that have not connected yet, so that they
end as well."""
_A_MOMENT = 0.005
"""Seconds until a full socket is tried again."""
_TICK = 0.5
BROKEN_OFF = 1
"""Exit code of agents whose pytest ended without an exit code."""


class Coordinator:
    """Connects one launcher and the agents."""

    def __init__(self, channel: Channel, engine: Engine, listener: AgentListener) -> None:
        self._channel, self._engine, self._listener = channel, engine, listener
        self._nodes: dict[int, Node] = {}
        self._lost: dict[int, str] = {}
        """Why nodes are lost, by number."""
        self._sent_away = 0
        """Number of machines that were rejected."""
        self._proxies: dict[int, RankProxy] = {}
        self._busy: set[int] = set()
        """Serials of ranks with unsent data: only these, few of hundreds, are looked at."""
        self._briefing: list[Message] = []
        """Messages that each host gets first, also that of a machine that joins late."""
        self._waiting: dict[int, list[WireFrame]] = {}
        """Frames for nodes that have not joined yet."""
        self._files: dict[str, str] = {}
        self._is_ready = False
        """Whether the hosts of all machines are up."""
        self._is_over = False
        self._code = BROKEN_OFF
        self._join_limit = _JOIN_LIMIT + engine.spread
        self._deadline = time.monotonic() + self._join_limit
        self._next_look = 0.0
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ, self._receive_from_controller)
        listener.open(self._selector, self._meet)

    def serve(self) -> None:
        """Work until pytest ends or dies."""
        while not (self._channel.at_end or self._is_over):
            self._turn()
            if time.monotonic() > self._deadline:
                self._deadline = float("inf")
                self._report(Unfit(self._missing_words()))
        for node in self._nodes.values():
            self._dismiss(node)
        if self._is_over:
            self._wait_for_late()

    def _wait_for_late(self) -> None:
        """End agents that connect after the end of the session."""
        deadline = time.monotonic() + _END_LIMIT
        while self._is_open() and time.monotonic() < deadline:
            self._turn()

    def _is_open(self) -> bool:
        came = len(self._nodes) + len(self._lost) + self._sent_away
        # Agents that an engine has started it ends itself.
        is_late = not self._engine.starts_agents and came < self._engine.nodes
        return is_late or any(not node.line.at_end for node in self._nodes.values())

    def _missing(self) -> list[int]:
        """Nodes that have not joined yet."""
        known = {*self._nodes, *self._lost}
        return [number for number in range(self._engine.nodes) if number not in known]

    def _dismiss(self, node: Node) -> None:
        node.line.send(WireFrame(FrameKind.END, part=self._code))

    def _turn(self) -> None:
        unsent = self._channel.unsent or any(self._proxies[serial].unsent for serial in self._busy)
        full = [node.line for node in self._nodes.values() if node.line.unsent]
        for key, _ in self._selector.select(_A_MOMENT if unsent or full else _TICK):
            # An earlier event of this loop may have removed this one.
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        self._channel.flush()
        self._busy = {serial for serial in self._busy if self._proxies[serial].is_busy}
        for serial in [serial for serial in self._busy if self._proxies[serial].flush()]:
            self._part_with(serial)
        for line in full:
            line.flush()
        if time.monotonic() > self._next_look:
            self._next_look = time.monotonic() + _TICK
            for node in self._nodes.values():
                node.watch(SILENCE)
            self._look_for_ended()
        for node in [node for node in self._nodes.values() if node.line.at_end]:
            self._lose(node, node.line.at_end)
        self._listener.forget_late()

    def _look_for_ended(self) -> None:
        """Look for agents that have ended before they connected; later their connections end."""
        if not self._is_over and (missing := self._missing()):
            ended = self._engine.ended()
            for number in sorted(ended.keys() & missing):
                self._lost[number] = ended[number]
                self._report(Unfit(ended[number]))

    def _missing_words(self) -> str:
        missing = [str(n) for n in range(self._engine.nodes) if n not in self._nodes]
        if not missing:
            slow = ", ".join(str(node) for node in self._nodes.values() if not node.ready)
            return f"the host of {slow} did not come up within {self._join_limit:.0f} s"
        return (
            f"{len(self._nodes)} of {self._engine.nodes} machines joined within "
            f"{self._join_limit:.0f} s; missing: node {', '.join(missing)}. Agents connect to node "
            f"0 at {self._listener.address}:{self._listener.port}. {self._engine.hint()}"
            f"{self._rejected()}"
        )

    def _rejected(self) -> str:
        rejected = self._listener.refused.items()
        return "".join(f". Rejected: {address}, {why}" for address, why in rejected)

    def _report(self, message: Message) -> None:
        self._channel.send(message)

    # ------------------------------------------------------------------ the controller

    def _receive_from_controller(self) -> None:
        for message, descriptors in self._channel.receive_available():
            match message:
                case Session() | Collected():
                    self._brief_all(message)
                case StartRank():
                    self._start(message, descriptors)
                case KillRank(serial):
                    if serial in self._proxies:
                        self._order(self._proxies[serial].node, _for_host(message))
                case SignalRank(serial, number):
                    if serial in self._proxies:
                        frame = WireFrame(FrameKind.SIGNAL, serial, number)
                        self._order(self._proxies[serial].node, frame)
                case OpenPort(node):
                    self._order(node, WireFrame(FrameKind.PORT))
                case LeaseGpus(node=node) | ReleaseGpus(node=node):
                    self._order(node, _for_host(message))
                case EndSession(code):
                    self._code, self._is_over = code, True
                case _:
                    raise AssertionError(f"{message} is not for a coordinator")

    def _brief_all(self, message: Session | Collected) -> None:
        self._briefing.append(message)
        if isinstance(message, Collected):
            self._files = version_check.digests((*message.files, *message.conftests))
        for node in self._nodes.values():
            self._brief(node, [message])

    def _brief(self, node: Node, messages: Iterable[Message]) -> None:
        for message in messages:
            if isinstance(message, Collected):
                # Before anything of these files is imported.
                node.line.send(WireFrame(FrameKind.FILES, data=json.dumps(self._files).encode()))
            node.line.send(_for_host(message))

    def _start(self, start: StartRank, descriptors: list[int]) -> None:
        node, serial = start.world.nodes[start.rank], start.serial
        self._proxies[serial] = proxy = RankProxy(node, descriptors)
        receive = functools.partial(self._receive_for_rank, serial)
        self._selector.register(proxy.channel, selectors.EVENT_READ, receive)
        if node in self._lost:
            self._report(RankStarted(serial, 0))
            why = f"cannot run: {self._lost[node]}"
            proxy.exited = RankExited(serial, -signal.SIGKILL, why)
            self._busy.add(serial)
        else:
            self._order(node, _for_host(start))

    def _receive_for_rank(self, serial: int) -> None:
        proxy = self._proxies[serial]
        for body in proxy.channel.receive_bodies():
            self._order(proxy.node, WireFrame(FrameKind.MESSAGE, serial, data=body))
        if proxy.channel.at_end:
            # The launcher has dropped this rank.
            self._part_with(serial)

    def _part_with(self, serial: int) -> None:
        """Drop a rank that is gone, after all its messages."""
        proxy = self._proxies.pop(serial)
        self._busy.discard(serial)
        self._selector.unregister(proxy.channel)
        if proxy.exited is not None:
            self._report(proxy.exited)
        proxy.close()

    def _order(self, number: int, frame: WireFrame) -> None:
        if (node := self._nodes.get(number)) is not None:
            node.line.send(frame)
        elif number not in self._lost:
            self._waiting.setdefault(number, []).append(frame)

    # ------------------------------------------------------------------ agents

    def _meet(self, connection: AgentConnection) -> None:
        """Read the first frame of an agent that has authenticated itself."""

        def read() -> None:
            if frames := connection.receive():
                self._selector.unregister(connection)
                if (node := self._join(connection, frames[0])) is not None:
                    for frame in frames[1:]:
                        self._take(node, frame)
            elif connection.at_end:
                self._selector.unregister(connection)
                connection.close()

        self._selector.register(connection, selectors.EVENT_READ, read)

    def _join(self, connection: AgentConnection, frame: WireFrame) -> Node | None:
        """Add a machine; None if it is rejected."""
        who = json.loads(frame.data)
        node = Node(who["node"], who["name"], connection)
        if problem := self._misplaced(node, who.get("nodes")):
            self._refuse(node, problem)
            return None
        self._nodes[node.number] = node
        self._selector.register(
            connection, selectors.EVENT_READ, functools.partial(self._receive, node)
        )
        if self._is_over:
            self._dismiss(node)
            return node
        # Another version of this package may not send these.
        found = tuple(who.get("gpus", ())), who.get("gpu_kind", "")
        self._report(NodeJoined(node.number, node.name, who["address"], *found))
        if other := version_check.other_version(version_check.versions(), who["versions"]):
            self._report(Unfit(f"{node} differs from node 0: {other}"))
        else:
            self._catch_up(node)
        node.beat()
        return node

    def _catch_up(self, node: Node) -> None:
        """Send a machine everything that was sent to the others before it joined."""
        self._brief(node, self._briefing)
        for waiting in self._waiting.pop(node.number, []):
            node.line.send(waiting)

    def _misplaced(self, node: Node, nodes: int | None) -> str:
        """Why a machine cannot have the number that it claims; empty if it can."""
        if other := node.other_settings(nodes, self._engine.nodes):
            return other
        if node.number in self._lost:
            return f"{self._lost[node.number]}; it cannot come back"
        if node.number in self._nodes:
            return f"two machines joined as {node}: each needs its own RANK"
        return ""

    def _refuse(self, node: Node, problem: str) -> None:
        """Reject a machine; a session that is complete without it goes on."""
        if not self._is_ready:
            self._report(Unfit(problem))
        self._sent_away += 1
        node.line.send(WireFrame(FrameKind.PROBLEM, data=problem.encode()))
        node.line.close()

    def _receive(self, node: Node) -> None:
        for frame in node.line.receive():
            self._take(node, frame)

    def _take(self, node: Node, frame: WireFrame) -> None:
        if (proxy := self._proxies.get(frame.serial)) is not None:
            self._busy.add(frame.serial)
        match frame.kind:
            case FrameKind.MESSAGE if frame.serial == 0:
                self._take_from_host(node, loads(frame.data))
            case FrameKind.MESSAGE if proxy is not None:
                if (news := node.news()) is not None:
                    # Before the message whose times need it.
                    self._report(news)
                proxy.send(frame.data)
            case FrameKind.STREAM if proxy is not None:
                proxy.write(frame.part, frame.data)
            case FrameKind.FILE if proxy is not None:
                proxy.keep(frame.part, frame.data)
            case FrameKind.CLOSED if proxy is not None:
                proxy.hang_up()
            case FrameKind.HEARTBEAT:
                node.take_answer(frame.data)
                node.beat()
            case FrameKind.PORT:
                self._report(PortOpened(node.number, frame.part))
            case FrameKind.PROBLEM:
                self._report(Unfit(f"{node} {frame.data.decode()}"))
            case FrameKind.COVERAGE:
                self._keep_coverage(node, frame.data)

    def _keep_coverage(self, node: Node, data: bytes) -> None:
        measured = next(
            (sent.measured for sent in self._briefing if isinstance(sent, Session)), None
        )
        if measured is not None:
            node.keep_coverage(measured.data_file, data)

    def _take_from_host(self, node: Node, message: Message) -> None:
        match message:
            case HostReady(fork_problem):
                if fork_problem is not None:
                    fix = "--ddp-start-method=spawn starts them otherwise"
                    self._report(Unfit(f"ranks cannot be forked on {node}: {fork_problem}; {fix}"))
                node.ready = True
                if sum(other.ready for other in self._nodes.values()) == self._engine.nodes:
                    self._deadline = float("inf")
                    self._is_ready = True
                    self._report(HostReady(None))
            case RankStarted() | GpusLeased():
                self._report(message)
            case RankExited(serial):
                if serial in self._proxies:
                    # After all its messages.
                    self._proxies[serial].exited = message
                    self._busy.add(serial)

    def _lose(self, node: Node, why: str) -> None:
        """Report a machine and its ranks as lost."""
        self._selector.unregister(node.line)
        node.line.close()
        del self._nodes[node.number]
        self._lost[node.number] = lost = f"{node} is lost: {why}"
        if self._is_over:
            return
        if not self._is_ready:
            self._report(Unfit(f"{lost}, before all machines were ready"))
        self._report(NodeLost(node.number, lost))
        for serial, proxy in self._proxies.items():
            if proxy.node == node.number and proxy.exited is None:
                # A form that fits one rank and several.
                words = f"went with its machine: {lost}"
                proxy.exited = RankExited(serial, -signal.SIGKILL, words)
                self._busy.add(serial)


def _for_host(message: Message) -> WireFrame:
    return WireFrame(FrameKind.MESSAGE, data=dumps(message).encode())
