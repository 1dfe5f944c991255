"""A door with real sockets, and who knocks at it."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from pytest_ddp.extensions.machines import agent_connection, handshake
from pytest_ddp.extensions.machines.agent_connection import (
    AgentConnection,
    AgentListener,
    FrameKind,
    WireFrame,
    connect,
)
from pytest_ddp.extensions.machines.handshake import SealError

SECRET = b"of this session"


class House:
    """A door and its owner's loop."""

    def __init__(self, agents: int = 0) -> None:
        self.door = AgentListener("127.0.0.1", 0, SECRET.decode(), agents)
        self.selector = selectors.DefaultSelector()
        self.lines: list[AgentConnection] = []
        self.door.open(self.selector, self.lines.append)

    def turn_until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not done():
            assert time.monotonic() < deadline
            for key, _ in self.selector.select(0.02):
                key.data()
            self.door.forget_late()

    def stranger(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.door.port), timeout=20)

    def knock(self, secret: bytes) -> AgentConnection | str:
        """The line of an agent, or why it got none."""
        got: list[AgentConnection | str] = []

        def agent() -> None:
            try:
                got.append(connect("127.0.0.1", self.door.port, secret))
            except SealError as error:
                got.append(str(error))

        thread = threading.Thread(target=agent)
        thread.start()
        self.turn_until(lambda: bool(got))
        thread.join()
        return got[0]


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.door.close()
    house.selector.close()


def hung_up(house: House, peer: socket.socket) -> bool:
    """Whether the door has closed a connection."""
    peer.settimeout(0)
    seen = b""

    def is_closed() -> bool:
        nonlocal seen
        with contextlib.suppress(BlockingIOError):
            try:
                while data := peer.recv(4096):
                    seen += data
            except ConnectionResetError:
                return True
            return True
        return False

    house.turn_until(is_closed)
    # A stranger learns no more than that there is a door.
    return len(seen) <= handshake.GREETING


def test_an_agent_is_let_in_and_heard(house: House) -> None:
    agent = house.knock(SECRET)
    assert isinstance(agent, AgentConnection)
    agent.send(WireFrame(FrameKind.STREAM, 7, 1, b"x" * 1_000_000))
    heard: list[WireFrame] = []

    def is_heard() -> bool:
        agent.flush()
        heard.extend(house.lines[0].receive())
        return bool(heard)

    house.turn_until(is_heard)
    assert heard == [WireFrame(FrameKind.STREAM, 7, 1, b"x" * 1_000_000)]
    agent.close()
    house.turn_until(lambda: bool(house.lines[0].receive() or house.lines[0].at_end))
    assert house.lines[0].at_end == "connection closed"
    house.lines[0].close()


def test_an_agent_with_another_secret_gets_the_reason_and_is_remembered(house: House) -> None:
    said = house.knock(b"of another session")
    assert isinstance(said, str)
    assert "wrong session secret" in said
    assert house.door.refused == {"127.0.0.1": "wrong session secret"}
    assert house.lines == []


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\nUser-Agent: a port scanner, perhaps\r\n\r\n",
        b"\0" * 1_000_000,
        struct.pack(">I", 1 << 30) * 20,
    ],
)
def test_garbage_ends_the_connection_at_once(house: House, said: bytes) -> None:
    with house.stranger() as peer, contextlib.suppress(ConnectionError):
        peer.settimeout(1)
        with contextlib.suppress(TimeoutError):
            peer.send(said)
        assert hung_up(house, peer)
    assert house.lines == []


def test_garbage_of_a_peer_that_is_gone_already_ends_nothing_else(house: House) -> None:
    """The peer has no address any more, by which it could be named."""
    with house.stranger() as peer:
        house.turn_until(lambda: bool(house.door._peers))
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.send(bytes(handshake.ANSWER + 1))
    house.turn_until(lambda: not house.door._peers)
    agent = house.knock(SECRET)
    assert isinstance(agent, AgentConnection)
    agent.close()
    house.lines[0].close()


def test_who_sends_nothing_is_hung_up_on(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_connection, "_PROOF_LIMIT", 0.2)
    with house.stranger() as peer:
        assert hung_up(house, peer)


def test_a_crowd_of_strangers_uses_up_little_and_passes(house: House) -> None:
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(house.stranger()) for _ in range(40)]
        house.turn_until(lambda: len(house.door._peers) == 16)
        for peer in crowd[16:]:
            assert hung_up(house, peer)
    house.turn_until(lambda: not house.door._peers)
    agent = house.knock(SECRET)
    assert isinstance(agent, AgentConnection)
    agent.close()
    house.lines[0].close()


def test_all_agents_may_come_in_one_moment() -> None:
    house = House(agents=40)
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(house.stranger()) for _ in range(57)]
        house.turn_until(lambda: len(house.door._peers) == 56)
        assert hung_up(house, crowd[56])
    house.door.close()
    house.selector.close()


def test_a_line_that_somebody_writes_into_ends(house: House) -> None:
    agent = house.knock(SECRET)
    assert isinstance(agent, AgentConnection)
    agent._socket.send(bytes(64))
    house.turn_until(lambda: bool(house.lines[0].receive() or house.lines[0].at_end))
    assert house.lines[0].at_end == "frame 0 was changed on the way"
    agent.close()
    house.lines[0].close()


def test_a_line_sends_signs_of_life(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_connection, "HEARTBEAT", 0.0)
    agent = house.knock(SECRET)
    assert isinstance(agent, AgentConnection)
    agent.beat()
    heard: list[WireFrame] = []

    def is_heard() -> bool:
        heard.extend(house.lines[0].receive())
        return bool(heard)

    house.turn_until(is_heard)
    assert heard == [WireFrame(FrameKind.HEARTBEAT)]
    agent.close()
    house.lines[0].close()
