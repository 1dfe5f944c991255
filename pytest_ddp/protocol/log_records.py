"""A log record that a rank sends to pytest's live log and log file.

Records have a socket of their own, for packets: a packet arrives whole or not at all, whichever
thread, child process or signal handler of the rank sends it, and can be read after its death.
"""

from __future__ import annotations

import array
import logging
from dataclasses import dataclass
from typing import Any

from pytest_ddp.system import tempfiles
from pytest_ddp.system.stdlib import json, os, socket

_BARE = frozenset({str, float, bool, type(None)})
_MOST_BITS = 64
"""Longer integers are sent as text; Python refuses to write very long ones as numbers."""
_LEFT = frozenset({"args", "exc_info", "message", "asctime"})
"""Fields that are in other fields already, or that formatters have added to the record."""
_WHOLE = 1 << 16
"""Bytes of a packet at most, as a socket takes no very long one; the rest is attached as a file."""
_formatter = logging.Formatter()


@dataclass(frozen=True, slots=True)
class Logged:
    """A log record as a rank sends it."""

    moment: float
    """When the record was logged (monotonic clock)."""
    when: str | None
    """The phase, as in pytest's ``set_when``."""
    fields: dict[str, Any]
    """The record's fields, with the message formatted, and the exception as text."""
    size: int
    """Bytes of the packet."""

    def record(self, prefix: str) -> logging.LogRecord:
        """The record, with ``prefix`` before its message."""
        record = logging.LogRecord("", logging.NOTSET, "", 0, "", None, None)
        vars(record).update(self.fields)
        record.msg = f"{prefix}{self.fields['msg']}"
        return record


@dataclass(frozen=True, slots=True)
class LogPath:
    """The rank's records go to another log file from now on (pytest's ``set_log_path``)."""

    moment: float
    path: str

    def packet(self) -> bytes:
        return json.dumps((self.moment, self.path)).encode()


def pack(record: logging.LogRecord, when: str | None, moment: float) -> bytes:
    """The packet of a record.

    Raises:
        Exception: whatever the record's arguments raise when its message is formatted.
    """
    fields = {name: _plain(value) for name, value in vars(record).items() if name not in _LEFT}
    fields["msg"] = record.getMessage()
    if record.exc_info and not record.exc_text:
        fields["exc_text"] = _formatter.formatException(record.exc_info)
    return json.dumps((moment, when, fields)).encode()


def send(sock: socket.socket, packet: bytes) -> None:
    """Send a packet; waits until there is room for it.

    Raises:
        OSError: the receiver is gone, or the socket was closed.
    """
    if len(packet) <= _WHOLE:
        sock.sendall(packet)
        return
    with os.fdopen(tempfiles.create("pytest-ddp record"), "wb") as file:
        file.write(packet[_WHOLE:])
        file.flush()
        rights = array.array("i", [file.fileno()])
        sock.sendmsg([packet[:_WHOLE]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def receive_packet(sock: socket.socket) -> bytes:
    """The next packet as it was sent; empty at the end.

    Raises:
        BlockingIOError: no packet has arrived.
    """
    packet: bytes
    packet, ancillary, _, _ = sock.recvmsg(_WHOLE, socket.CMSG_LEN(array.array("i").itemsize))
    for _, _, data in ancillary:
        with os.fdopen(array.array("i", data)[0], "rb") as stream:
            stream.seek(0)
            packet += stream.read()
    return packet


def receive(sock: socket.socket) -> Logged | LogPath | None:
    """The next record or path; None at the end.

    Raises:
        BlockingIOError: no packet has arrived.
        ValueError: something other than a rank's handler wrote to the socket.
    """
    if not (packet := receive_packet(sock)):
        return None
    match json.loads(packet):
        case moment, path:
            return LogPath(moment, path)
        case moment, when, fields:
            return Logged(moment, when, fields, len(packet))
        case other:
            raise ValueError(other)


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind in _BARE or (kind is int and value.bit_length() <= _MOST_BITS):
        return value
    try:
        return str(value)
    except Exception as error:
        return f"<{kind.__name__} whose str() raised {error!r}>"
