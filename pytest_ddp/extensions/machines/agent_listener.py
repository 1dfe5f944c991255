"""The socket where agents connect, and peers that have not authenticated themselves yet."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

from pytest_ddp.extensions.machines.agent_connection import AgentConnection
from pytest_ddp.extensions.machines.handshake import ANSWER, SealError, ServerHandshake
from pytest_ddp.system.stdlib import selectors, socket, time

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
        """With the address, which a closed socket does not have any more."""
        self.refused: dict[str, str] = {}
        """Why peers were rejected, by address; of the first few."""

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
