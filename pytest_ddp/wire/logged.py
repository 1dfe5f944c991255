"""A log record on its way from a rank to pytest's live log and log file.

It has a socket of its own, of packets: a packet comes whole or not at all, whichever thread, child
process or signal handler of the rank sends it, and what a rank sent is there after its death.
"""

from __future__ import annotations

import array
import logging
from dataclasses import dataclass
from typing import Any

from pytest_ddp.system import memfile
from pytest_ddp.system.own import json, os, socket

_BARE = frozenset({str, float, bool, type(None)})
_MOST_BITS = 64
"""Of a number that travels as one; Python refuses to write very long ones."""
_LEFT = frozenset({"args", "exc_info", "message", "asctime"})
"""What is in other fields already, or what formatters have put into the record."""
_WHOLE = 1 << 15
"""Bytes of a packet; what is longer travels as a file, since a socket takes no packet that is."""
_IN_FILE = b"\0"
_formatter = logging.Formatter()


@dataclass(frozen=True, slots=True)
class Logged:
    """A record as it travels."""

    moment: float
    """When it was logged (monotonic clock)."""
    when: str | None
    """The phase, in the words of pytest's ``set_when``."""
    fields: dict[str, Any]
    """Those of the record, its arguments put into the message and its exception into text."""

    def record(self, prefix: str) -> logging.LogRecord:
        """The record, its message begun with ``prefix``."""
        record = logging.LogRecord("", logging.NOTSET, "", 0, "", None, None)
        vars(record).update(self.fields)
        record.msg = f"{prefix}{self.fields['msg']}"
        return record


def pack(record: logging.LogRecord, when: str | None, moment: float) -> bytes:
    """The packet of a record.

    Raises:
        Exception: whatever its own arguments raise when they are put into its message.
    """
    fields = {name: _plain(value) for name, value in vars(record).items() if name not in _LEFT}
    fields["msg"] = record.getMessage()
    if record.exc_info and not record.exc_text:
        fields["exc_text"] = _formatter.formatException(record.exc_info)
    return json.dumps((moment, when, fields)).encode()


def send(sock: socket.socket, packet: bytes) -> None:
    """Send a packet, once there is room for it.

    Raises:
        OSError: nobody reads any more, or the socket was closed.
    """
    if len(packet) <= _WHOLE:
        sock.sendall(packet)
        return
    file = memfile.create("pytest-ddp record")
    try:
        with os.fdopen(os.dup(file), "wb") as stream:
            stream.write(packet)
        rights = array.array("i", [file])
        sock.sendmsg([_IN_FILE], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    finally:
        os.close(file)


def receive(sock: socket.socket) -> Logged | None:
    """The next record; None at the end.

    Raises:
        BlockingIOError: there is none now.
        ValueError: something else than a rank's handler wrote here.
    """
    packet, ancillary, _, _ = sock.recvmsg(_WHOLE, socket.CMSG_LEN(array.array("i").itemsize))
    if not packet:
        return None
    for _, _, data in ancillary:
        with os.fdopen(array.array("i", data)[0], "rb") as stream:
            stream.seek(0)
            packet = stream.read()
    moment, when, fields = json.loads(packet)
    return Logged(moment, when, fields)


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind in _BARE or (kind is int and value.bit_length() <= _MOST_BITS):
        return value
    try:
        return str(value)
    except Exception as error:
        return f"<{kind.__name__} whose str() raised {error!r}>"
