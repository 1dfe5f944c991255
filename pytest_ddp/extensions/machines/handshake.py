"""Authentication before anything is parsed, and integrity of the frames after it.

Both sides have the session's secret. The agent proves it first, so that any other peer gets a nonce
of the coordinator and nothing else; each proof covers the nonces of both, so that none can be
replayed. Afterwards each frame has its own HMAC over its number and its direction: a frame that is
changed, left out, repeated or sent back breaks the connection. Nothing is encrypted: Python has TLS
with a shared secret from 3.13 on only, and certificates would have to be distributed first.

There are no sockets here: bytes in, bytes out.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct

MAGIC = b"pytest-ddp coordinator 1"
_NONCE = 16
_PROOF = 32
_MAC = 16
GREETING = len(MAGIC) + _NONCE
"""Length in bytes of the coordinator's first message."""
ANSWER = _NONCE + _PROOF
"""Length in bytes of an agent's answer; a peer that sends more before it is authenticated is
rejected."""
WELCOME = _PROOF
_HEADER = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")
LONGEST = 1 << 28
"""Bytes of a frame at most: reports may have megabytes, no frame has more than this."""


class SealError(Exception):
    """The peer does not have the secret, or a frame was changed on the way."""


class Seal:
    """Both directions of one connection whose ends have authenticated each other."""

    def __init__(self, ours: bytes, theirs: bytes) -> None:
        self._ours, self._theirs = ours, theirs
        self._sent = self._opened = 0
        self._received = bytearray()

    def close(self, body: bytes) -> bytes:
        """A frame to send."""
        header = _HEADER.pack(len(body))
        frame = header + _mac(self._ours, self._sent, header, body) + body
        self._sent += 1
        return frame

    def open(self, data: bytes) -> list[bytes]:
        """The bodies of the frames that are whole now.

        Raises:
            SealError: a frame was not written by the peer.
        """
        self._received += data
        bodies = []
        begin = _HEADER.size + _MAC
        while len(self._received) >= begin:
            (length,) = _HEADER.unpack_from(self._received)
            if length > LONGEST:
                raise SealError(f"a frame of {length} bytes, longer than any of pytest-ddp")
            if len(self._received) < begin + length:
                break
            header, mac = bytes(self._received[: _HEADER.size]), bytes(self._received[4:begin])
            body = bytes(self._received[begin : begin + length])
            if not hmac.compare_digest(mac, _mac(self._theirs, self._opened, header, body)):
                raise SealError(f"frame {self._opened} was changed on the way")
            self._opened += 1
            del self._received[: begin + length]
            bodies.append(body)
        return bodies


class ServerHandshake:
    """The coordinator's side of the handshake."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonce = secrets.token_bytes(_NONCE)
        self._received = bytearray()

    @property
    def greeting(self) -> bytes:
        return MAGIC + self._nonce

    def open(self, data: bytes) -> tuple[bytes, Seal] | None:
        """The answer to send, and the seal for all that follows; None while bytes are missing.

        Raises:
            SealError: the peer does not have the secret.
        """
        self._received += data
        if len(self._received) > ANSWER:
            raise SealError("more bytes than a proof before authentication")
        if len(self._received) < ANSWER:
            return None
        theirs, proof = bytes(self._received[:_NONCE]), bytes(self._received[_NONCE:])
        nonces = self._nonce + theirs
        if not hmac.compare_digest(proof, _derived(self._secret, b"agent", nonces)):
            raise SealError("wrong session secret")
        to_agent, to_coordinator = _keys(self._secret, nonces)
        return _derived(self._secret, b"coordinator", nonces), Seal(to_agent, to_coordinator)


class ClientHandshake:
    """The agent's side of the handshake."""

    def __init__(self, secret: bytes, greeting: bytes) -> None:
        """Take the coordinator's greeting.

        Raises:
            SealError: the listener is no coordinator of this version.
        """
        if len(greeting) != GREETING or not greeting.startswith(MAGIC):
            raise SealError("the listener is no pytest-ddp, or another version of it")
        self._secret = secret
        ours = secrets.token_bytes(_NONCE)
        self._nonces = greeting[len(MAGIC) :] + ours
        self.answer = ours + _derived(secret, b"agent", self._nonces)

    def open(self, welcome: bytes) -> Seal:
        """The seal, once the coordinator has authenticated itself as well.

        Raises:
            SealError: the coordinator does not have the secret.
        """
        if not hmac.compare_digest(welcome, _derived(self._secret, b"coordinator", self._nonces)):
            raise SealError("the listener has another session secret")
        to_agent, to_coordinator = _keys(self._secret, self._nonces)
        return Seal(to_coordinator, to_agent)


def new_secret() -> str:
    """A new secret, for one session."""
    return secrets.token_hex(32)


def _keys(secret: bytes, nonces: bytes) -> tuple[bytes, bytes]:
    return _derived(secret, b"to agent", nonces), _derived(secret, b"to coordinator", nonces)


def _derived(secret: bytes, what: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, what + b"\0" + nonces, hashlib.sha256)


def _mac(key: bytes, number: int, header: bytes, body: bytes) -> bytes:
    # Not over a joined copy: bodies may be long.
    mac = hmac.new(key, _NUMBER.pack(number) + header, hashlib.sha256)
    mac.update(body)
    return mac.digest()[:_MAC]
