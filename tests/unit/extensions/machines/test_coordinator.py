"""A coordinator with real connections, and agents that are no machines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_ddp.extensions.machines import coordinator as module
from pytest_ddp.extensions.machines import version_check
from pytest_ddp.extensions.machines.agent_connection import (
    AgentConnection,
    AgentListener,
    FrameKind,
    WireFrame,
    connect,
)
from pytest_ddp.extensions.machines.coordinator import Coordinator
from pytest_ddp.extensions.machines.engines.torchrun import Torchrun
from pytest_ddp.extensions.machines.machine_messages import (
    EndSession,
    GpusLeased,
    LeaseGpus,
    NodeJoined,
    NodeLost,
    ReleaseGpus,
    Unfit,
)
from pytest_ddp.protocol.channel import Channel, dumps, loads
from pytest_ddp.protocol.host_messages import HostReady
from pytest_ddp.protocol.messages import Message
from pytest_ddp.system.stdlib import json

SECRET = "of this session"


class Session:
    """A coordinator at work, and the controller's end of its channel."""

    def __init__(self, nodes: int) -> None:
        self.channel, theirs = Channel.pair()
        theirs.setblocking(False)
        self.door = AgentListener("127.0.0.1", 0, SECRET)
        engine = Torchrun(0, nodes, "of-node-0", 29500, True, "key")
        self.coordinator = Coordinator(Channel(theirs), engine, self.door)
        self._thread = threading.Thread(target=self.coordinator.serve, daemon=True)
        self._thread.start()
        self._heard: list[Message] = []
        self._lines: list[AgentConnection] = []

    def join(self, number: int, **changes: Any) -> AgentConnection:
        """An agent that has come."""
        line = connect("127.0.0.1", self.door.port, SECRET.encode())
        self._lines.append(line)
        who = {
            "node": number,
            "nodes": None,
            "name": f"m{number}",
            "address": "127.0.0.1",
            "versions": version_check.versions(),
            **changes,
        }
        line.send(WireFrame(FrameKind.JOIN, data=json.dumps(who).encode()))
        return line

    def hear(self, kind: type[Message]) -> Any:
        """The next message of a kind that the coordinator sends to the controller."""
        return _within(lambda: self._next(kind))

    def _next(self, kind: type[Message]) -> Message | None:
        self._heard += [message for message, _ in self.channel.receive_available()]
        for message in self._heard:
            if isinstance(message, kind):
                self._heard.remove(message)
                return message
        return None

    def close(self) -> None:
        self.channel.send(EndSession(0))
        self._thread.join(20)
        assert not self._thread.is_alive()
        self.door.close()
        self.channel.close()
        self.coordinator._channel.close()
        for line in (*self._lines, *(node.line for node in self.coordinator._nodes.values())):
            line.close()


def _within(find: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 20
    while (found := find()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def ready(line: AgentConnection) -> None:
    line.send(WireFrame(FrameKind.MESSAGE, data=dumps(HostReady(None)).encode()))


def refusal(line: AgentConnection) -> str:
    """Why the coordinator sends an agent away."""

    def find() -> str | None:
        problems = [
            frame.data.decode() for frame in line.receive() if frame.kind is FrameKind.PROBLEM
        ]
        return problems[0] if problems else None

    said: str = _within(find)
    return said


@pytest.fixture
def of_two(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setattr(module, "_END_LIMIT", 0.0)
    session = Session(2)
    yield session
    session.close()


def test_machines_that_do_not_come_are_counted_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_JOIN_LIMIT", 1.0)
    monkeypatch.setattr(module, "_END_LIMIT", 0.0)
    session = Session(4)
    session.join(0)
    session.join(2)
    said = session.hear(Unfit).problem
    session.close()
    assert said == (
        "2 of 4 machines joined within 1 s; missing: node 1, 3. Agents connect to node 0 at "
        f"127.0.0.1:{session.door.port}. Each must reach that address (MASTER_ADDR is of-node-0), "
        "and have the same PYTEST_DDP_SECRET if one is set"
    )


def test_a_host_that_does_not_come_up_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_JOIN_LIMIT", 1.0)
    monkeypatch.setattr(module, "_END_LIMIT", 0.0)
    session = Session(2)
    ready(session.join(0))
    session.join(1)
    said = session.hear(Unfit).problem
    session.close()
    assert said == "the host of node 1 (m1) did not come up within 1 s"


def test_a_machine_that_was_lost_cannot_come_back(of_two: Session) -> None:
    lines = [of_two.join(node) for node in range(2)]
    for line in lines:
        of_two.hear(NodeJoined)
        ready(line)
    of_two.hear(HostReady)
    lines[1].close()
    lost = "node 1 (m1) is lost: connection closed"
    assert of_two.hear(NodeLost) == NodeLost(1, lost)
    assert refusal(of_two.join(1)) == f"{lost}; it cannot come back"


@pytest.mark.parametrize("changes", [{"nodes": 3}, {"node": 2, "nodes": 2}, {"node": 2}])
def test_a_machine_with_other_settings_is_refused(of_two: Session, changes: dict[str, int]) -> None:
    said = refusal(of_two.join(1, **changes))
    assert "WORLD_SIZE is the same on all nodes, and RANK is below it" in said
    assert of_two.hear(Unfit).problem == said


def test_gpus_of_a_machine_are_reported_and_leased_there(of_two: Session) -> None:
    line = of_two.join(1, gpus=["GPU-a", "GPU-b"], gpu_kind="xpu")
    expected = NodeJoined(1, "m1", "127.0.0.1", ("GPU-a", "GPU-b"), "xpu")
    assert of_two.hear(NodeJoined) == expected
    orders: list[Message] = [LeaseGpus(7, 1, 2, 1, 3.0, "a test"), ReleaseGpus(7, 1)]
    for order in orders:
        of_two.channel.send(order)
    heard: list[Message] = []

    def both() -> bool | None:
        frames = [frame for frame in line.receive() if frame.kind is FrameKind.MESSAGE]
        heard.extend(loads(frame.data) for frame in frames)
        return len(heard) == 2 or None

    _within(both)
    assert heard == orders
    answer = GpusLeased(7, (0, 1))
    line.send(WireFrame(FrameKind.MESSAGE, data=dumps(answer).encode()))
    assert of_two.hear(GpusLeased) == answer


def test_an_agent_that_reports_no_gpus_gets_the_reason_why_it_does_not_fit(of_two: Session) -> None:
    """The agent is of an older version; versions are compared after it has joined."""
    of_two.join(1, versions={**version_check.versions(), "pytest-ddp": "0.0.1"})
    assert of_two.hear(NodeJoined).gpus == ()
    assert "pytest-ddp is 0.0.1 there" in of_two.hear(Unfit).problem
