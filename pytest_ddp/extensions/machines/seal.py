"""Who is there, proved before anything is parsed; then frames that nobody has changed.

Both sides know the session's secret. The agent proves it first, so that a stranger gets a nonce of
the hub's and nothing else; each side's proof holds the nonces of both, so that none can be used
again. Afterwards each frame has an HMAC of its own over its number and its direction: one that is
changed, left out, sent again or sent back breaks the connection. What travels can be read on the
way: TLS by a shared secret is in Python from 3.13 on only, and certificates would have to be handed
out first.

No sockets here: bytes come in, bytes go out.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct

MAGIC = b"pytest-ddp hub 1"
_NONCE = 16
_PROOF = 32
_MAC = 16
GREETING = len(MAGIC) + _NONCE
"""Bytes of what the hub says first."""
ANSWER = _NONCE + _PROOF
"""Bytes of what an agent answers; a peer that has sent more before it has proved anything is
refused."""
WELCOME = _PROOF
_HEADER = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")
LONGEST = 1 << 28
"""Bytes of a frame: reports may hold megabytes, and a length beyond this is none of ours."""


class SealError(Exception):
    """The peer is a stranger, or what came is not what was sent."""


class Seal:
    """Both directions of one connection whose ends have proved that they know the secret."""

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
            SealError: somebody else has written into the connection.
        """
        self._received += data
        bodies = []
        begin = _HEADER.size + _MAC
        while len(self._received) >= begin:
            (length,) = _HEADER.unpack_from(self._received)
            if length > LONGEST:
                raise SealError(f"a frame of {length} bytes is none of ours")
            if len(self._received) < begin + length:
                break
            header, mac = bytes(self._received[: _HEADER.size]), bytes(self._received[4:begin])
            body = bytes(self._received[begin : begin + length])
            if not hmac.compare_digest(mac, _mac(self._theirs, self._opened, header, body)):
                raise SealError(f"frame {self._opened} is not as it was sent")
            self._opened += 1
            del self._received[: begin + length]
            bodies.append(body)
        return bodies


class Gate:
    """The hub's side of one connection, until its peer has proved itself."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonce = secrets.token_bytes(_NONCE)
        self._received = bytearray()

    @property
    def greeting(self) -> bytes:
        return MAGIC + self._nonce

    def open(self, data: bytes) -> tuple[bytes, Seal] | None:
        """What to answer and the seal from then on; None while more has to come.

        Raises:
            SealError: the peer does not know the secret.
        """
        self._received += data
        if len(self._received) > ANSWER:
            raise SealError("it said more than a proof before it was let in")
        if len(self._received) < ANSWER:
            return None
        theirs, proof = bytes(self._received[:_NONCE]), bytes(self._received[_NONCE:])
        nonces = self._nonce + theirs
        if not hmac.compare_digest(proof, _derived(self._secret, b"agent", nonces)):
            raise SealError("it does not know the session's secret")
        to_agent, to_hub = _keys(self._secret, nonces)
        return _derived(self._secret, b"hub", nonces), Seal(to_agent, to_hub)


class Knock:
    """The agent's side of the same."""

    def __init__(self, secret: bytes, greeting: bytes) -> None:
        """Take the hub's greeting.

        Raises:
            SealError: it is no hub of ours.
        """
        if len(greeting) != GREETING or not greeting.startswith(MAGIC):
            raise SealError("who listens there is no pytest-ddp, or one of another version")
        self._secret = secret
        ours = secrets.token_bytes(_NONCE)
        self._nonces = greeting[len(MAGIC) :] + ours
        self.answer = ours + _derived(secret, b"agent", self._nonces)

    def open(self, welcome: bytes) -> Seal:
        """The seal, once the hub has proved itself as well.

        Raises:
            SealError: it has not.
        """
        if not hmac.compare_digest(welcome, _derived(self._secret, b"hub", self._nonces)):
            raise SealError("who listens there does not know the session's secret")
        to_agent, to_hub = _keys(self._secret, self._nonces)
        return Seal(to_hub, to_agent)


def new_secret() -> str:
    """One for a session."""
    return secrets.token_hex(32)


def _keys(secret: bytes, nonces: bytes) -> tuple[bytes, bytes]:
    return _derived(secret, b"to agent", nonces), _derived(secret, b"to hub", nonces)


def _derived(secret: bytes, what: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, what + b"\0" + nonces, hashlib.sha256)


def _mac(key: bytes, number: int, header: bytes, body: bytes) -> bytes:
    # Not over a joined copy: bodies may be long.
    mac = hmac.new(key, _NUMBER.pack(number) + header, hashlib.sha256)
    mac.update(body)
    return mac.digest()[:_MAC]
