"""The connection of an agent and the coordinator: frames over TCP, for all ranks of a machine.

The coordinator listens for agents. Peers that have not authenticated themselves yet may send no
frame.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass

from pytest_ddp.extensions.machines.handshake import (
    ANSWER,
    GREETING,
    WELCOME,
    ClientHandshake,
    Seal,
    SealError,
    ServerHandshake,
)
from pytest_ddp.system.stdlib import selectors, socket, time

_HEADER = struct.Struct(">BQI")
_CHUNK = 1 << 18
_SHAKE_LIMIT = 30.0
"""Seconds for the handshake; a loaded machine needs a part of one."""
_CLOSED = "connection closed"
HEARTBEAT = 1.0
"""Seconds between two signs of life."""


class FrameKind(enum.IntEnum):
    """What a frame is; ``serial`` is the rank's, or 0 for frames of the machine."""

    JOIN = 1
    """agent: its node, name, versions and GPUs, as JSON."""
    HEARTBEAT = 2
    """both: a sign of life; the coordinator's may be a question about the agent's clocks, and the
    agent's the answer, see :mod:`pytest_ddp.extensions.machines.clocks`."""
    MESSAGE = 3
    """both: a message of :mod:`pytest_ddp.protocol.messages`; with serial 0 to or from the host."""
    STREAM = 4
    """agent: output of a rank; ``part`` is 0 for stdout, 1 for stderr, 2 for a log record."""
    FILE = 5
    """agent: the whole content of a file that a rank leaves; ``part`` counts the four of
    ``RankFiles``, then its capture files."""
    CLOSED = 6
    """agent: the rank has closed its channel."""
    PORT = 7
    """coordinator: open a port; agent: ``part`` is open."""
    SIGNAL = 8
    """coordinator: ``part`` is the signal for a rank."""
    FILES = 9
    """coordinator: digests of test files, as JSON by path."""
    PROBLEM = 10
    """both: why this machine cannot take part, as text."""
    END = 11
    """coordinator: the session is over, ``part`` is pytest's exit code."""
    COVERAGE = 12
    """agent: a file that ranks leave for a coverage report: the end of its name, a NUL, its
    content."""


@dataclass(frozen=True, slots=True)
class WireFrame:
    """One message on the connection."""

    kind: FrameKind
    serial: int = 0
    part: int = 0
    data: bytes = b""

    def pack(self) -> bytes:
        return _HEADER.pack(self.kind, self.serial, self.part) + self.data

    @classmethod
    def unpack(cls, body: bytes) -> WireFrame:
        """Read a frame from what :meth:`pack` returned.

        Raises:
            SealError: it is no frame.
        """
        try:
            kind, serial, part = _HEADER.unpack_from(body)
            return cls(FrameKind(kind), serial, part, body[_HEADER.size :])
        except (struct.error, ValueError) as error:
            raise SealError(f"no frame of pytest-ddp: {error}") from error


class AgentConnection:
    """One end of a connection; it never blocks, and keeps what the network does not take yet."""

    def __init__(self, sock: socket.socket, sealed: Seal) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._seal = sock, sealed
        self._unsent = bytearray()
        self.received_at = self._sent_at = time.monotonic()
        """When something was last received, and sent (monotonic clock)."""
        self.at_end = ""
        """Why nothing can be received any more; empty while the connection is open."""

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def own_address(self) -> str:
        address: str = self._socket.getsockname()[0]
        return address

    @property
    def unsent(self) -> bool:
        return bool(self._unsent) and not self.at_end

    def send(self, frame: WireFrame) -> None:
        self._unsent += self._seal.close(frame.pack())
        self._sent_at = time.monotonic()
        self.flush()

    def beat(self) -> None:
        """Send a sign of life, if it is time."""
        if time.monotonic() > self._sent_at + HEARTBEAT:
            self.send(WireFrame(FrameKind.HEARTBEAT))

    def flush(self) -> None:
        """Send what is waiting, as far as the network takes it."""
        try:
            while self._unsent and not self.at_end:
                sent = self._socket.send(self._unsent[:_CHUNK])
                del self._unsent[:sent]
        except BlockingIOError:
            pass
        except (ConnectionResetError, BrokenPipeError):
            self.at_end = _CLOSED
        except OSError as error:
            self.at_end = f"connection lost: {error.strerror}"

    def receive(self) -> list[WireFrame]:
        """Frames that have arrived; :attr:`at_end` is set if these were the last."""
        frames: list[WireFrame] = []
        try:
            while data := self._socket.recv(_CHUNK):
                self.received_at = time.monotonic()
                frames += map(WireFrame.unpack, self._seal.open(data))
            self.at_end = self.at_end or _CLOSED
        except BlockingIOError:
            pass
        except ConnectionResetError:
            # Its process has ended without reading all that was sent to it.
            self.at_end = self.at_end or _CLOSED
        except OSError as error:
            self.at_end = f"connection lost: {error.strerror}"
        except SealError as error:
            self.at_end = str(error)
        return frames

    def silent_for(self) -> float:
        """Seconds without a sign of life."""
        return time.monotonic() - self.received_at

    def close(self) -> None:
        self._socket.close()


def connect(address: str, port: int, secret: bytes) -> AgentConnection:
    """Connect an agent to its coordinator.

    Raises:
        OSError: nothing listens there.
        SealError: the listener is no coordinator of this session.
    """
    sock = socket.create_connection((address, port), timeout=_SHAKE_LIMIT)
    try:
        client = ClientHandshake(secret, _exactly(sock, GREETING))
        sock.sendall(client.answer)
        return AgentConnection(sock, client.open(_exactly(sock, WELCOME)))
    except BaseException:
        sock.close()
        raise


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (more := sock.recv(count - len(data))):
            raise SealError("connection closed by the coordinator: wrong session secret")
        data += more
    return data


# ------------------------------------------------------------------ the coordinator listens

_PROOF_LIMIT = 10.0
"""Seconds for a peer to authenticate itself."""
_MOST = 16
"""Peers that may do so at once, beside the agents, which may all connect at the same time: a port
scan must not use up descriptors."""
_BACKLOG = 4096
"""The largest number of agents; the kernel may be configured to allow fewer."""


class AgentListener:
    """Accepts agents, and rejects all other peers."""

    def __init__(self, address: str, port: int, secret: str, agents: int = 0) -> None:
        """Listen on one address; with port 0 the kernel chooses a port.

        Raises:
            OSError: the address or the port cannot be used.
        """
        self.secret = secret
        self._most = _MOST + agents
        self._socket = socket.create_server((address, port), backlog=_BACKLOG)
        self._socket.setblocking(False)
        self.address, self.port = self._socket.getsockname()
        self._peers: dict[socket.socket, tuple[ServerHandshake, float, str]] = {}
        """Handshake, deadline and address of each; a closed socket does not have its address."""
        self.refused: dict[str, str] = {}
        """Why the first few peers were rejected, by address."""

    def open(
        self, selector: selectors.BaseSelector, let_in: Callable[[AgentConnection], None]
    ) -> None:
        """Register the sockets; the selector's owner calls their data when they are readable."""
        self._selector, self._let_in = selector, let_in
        selector.register(self._socket, selectors.EVENT_READ, self._accept)

    def forget_late(self) -> None:
        """Disconnect peers that take too long."""
        for peer, (_, deadline, _) in list(self._peers.items()):
            if time.monotonic() > deadline:
                self._forget(peer).close()

    def close(self) -> None:
        for peer in list(self._peers):
            self._forget(peer).close()
        self._selector.unregister(self._socket)
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it has disconnected again
            peer, (address, _) = self._socket.accept()
            if len(self._peers) >= self._most:
                peer.close()
                return
            peer.setblocking(False)
            gate = ServerHandshake(self.secret.encode())
            self._peers[peer] = gate, time.monotonic() + _PROOF_LIMIT, address
            read = functools.partial(self._read, peer)
            self._selector.register(peer, selectors.EVENT_READ, read)
            # The buffer of a new connection has room for so few bytes.
            peer.send(gate.greeting)

    def _read(self, peer: socket.socket) -> None:
        gate, _, address = self._peers[peer]
        try:
            # One byte more than a proof has, to detect a peer that sends more.
            data = peer.recv(ANSWER + 1)
            let_in = gate.open(data) if data else None
            if let_in is not None:
                peer.send(let_in[0])
        except BlockingIOError:
            return
        except SealError as error:
            if len(self.refused) < _MOST:
                self.refused[address] = str(error)
            data, let_in = b"", None
        except OSError:
            data, let_in = b"", None
        if let_in is not None:
            self._let_in(AgentConnection(self._forget(peer), let_in[1]))
        elif not data:
            self._forget(peer).close()

    def _forget(self, peer: socket.socket) -> socket.socket:
        del self._peers[peer]
        self._selector.unregister(peer)
        return peer
