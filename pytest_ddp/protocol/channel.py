"""Framed, typed messages over one stream socket, used by controller, host and ranks.

A frame is a header (length, sequence number) and JSON. JSON is readable in a debugger, and without
pickle it is safe to parse what a broken process sends. File descriptors are attached to a frame
(SCM_RIGHTS), so that nothing needs a port.
"""

from __future__ import annotations

import array
import dataclasses
import enum
import functools
import struct
import types
import typing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any, TypeVar

from pytest_ddp.protocol.host_messages import StartRank
from pytest_ddp.protocol.messages import (
    EXTENSION_KINDS,
    ExtensionMessage,
    Message,
    RankReady,
    RunTest,
    TerminalReply,
)
from pytest_ddp.system.stdlib import json, os, socket

_HEADER = struct.Struct(">IQ")
_ROOM = socket.CMSG_LEN(16 * array.array("i").itemsize)
"""Bytes for 16 descriptors, which is more than any message has."""
_CHUNK = 1 << 18
_Read = TypeVar("_Read")
_Record = TypeVar("_Record")
_from_json = json.JSONDecoder().decode
_OURS = f"{__package__}."
"""Modules with our records; a report may hold a dataclass of the user's, which is none."""
_KINDS: dict[str, type] = {kind.__name__: kind for kind in typing.get_args(Message)}


class ChannelError(Exception):
    """The peer sent something other than our frames: the stream cannot be trusted."""

    before: Sequence[Any] = ()
    """Complete messages that arrived before it."""


class Channel:
    """One end of a socketpair.

    The end of a host or rank is blocking, as it has nothing else to do. The controller makes its
    ends non-blocking, so that a rank that does not read (it may hold the GIL for good) can never
    block the verdict; what the socket has no room for waits in ``unsent``.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        # Bound here, since a test may patch the methods of all sockets.
        self._sendmsg, self._recvmsg = sock.sendmsg, sock.recvmsg
        self._inode = os.fstat(sock.fileno()).st_ino
        self._received = bytearray()
        self._descriptors: deque[int] = deque()
        self._unsent = bytearray()
        self._rights: deque[tuple[int, tuple[int, ...]]] = deque()
        """Our copies of descriptors to send, with the begin of their frame in ``_unsent``."""
        self._sent_count = 0
        self._received_count = 0
        self.at_end = False
        """True once the peer has closed its end (and every copy of it)."""
        self.when_full: Callable[[], object] | None = None
        """Called when something has to wait in ``unsent``: the owner of hundreds of channels need
        not check each."""

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """A non-blocking end for the controller, and the bare socket for its peer."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        return cls(ours), theirs

    def fileno(self) -> int:
        return self._socket.fileno()

    def is_there(self) -> bool:
        """False if a test has closed our descriptor, whose number may be another file's by now."""
        try:
            return os.fstat(self.fileno()).st_ino == self._inode
        except OSError:
            return False

    @property
    def unsent(self) -> bool:
        return bool(self._unsent)

    @property
    def has_message(self) -> bool:
        """True if a complete message has been read already, which poll would not report."""
        return self._end_of_frame() is not None

    def close(self) -> None:
        """Close this end, and all descriptors that were not taken or not sent."""
        self._socket.close()
        self._forget_unsent()
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def send(
        self, message: Message, descriptors: Sequence[int] = (), *, more: bool = False
    ) -> None:
        """Send one message; with ``more``, together with the next one.

        The caller may close its descriptors at once.

        Raises:
            OSError: the peer is gone (only on a blocking end; the controller learns of a lost rank
                from the host, not from a failed send).
        """
        self.send_body(dumps(message).encode(), descriptors, more=more)

    def send_body(
        self, body: bytes, descriptors: Sequence[int] = (), *, more: bool = False
    ) -> None:
        """Send a message that is serialized already, by :func:`dumps`."""
        frame = _HEADER.pack(len(body), self._sent_count) + body
        self._sent_count += 1
        if descriptors:
            copies = tuple(os.dup(descriptor) for descriptor in descriptors)
            self._rights.append((len(self._unsent), copies))
        self._unsent += frame
        if not more:
            self.flush()

    def flush(self) -> None:
        """Send what is waiting, as far as the socket has room."""
        try:
            while self._unsent:
                self._send_some()
        except BlockingIOError:
            if self.when_full is not None:
                self.when_full()
        except (BrokenPipeError, ConnectionResetError):
            if self._socket.getblocking():
                raise
            self._forget_unsent()

    def _send_some(self) -> None:
        # Descriptors are attached to the first byte of their frame: earlier bytes are sent before,
        # and the next frame with descriptors by the next call.
        starts = [start for start, _ in self._rights] + [_CHUNK]
        due = starts[0] == 0
        ancillary = []
        if due:
            rights = array.array("i", self._rights[0][1])
            ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, rights))
        end = min(starts[1] if due else starts[0], _CHUNK)
        sent = self._sendmsg([bytes(self._unsent[:end])], ancillary)
        del self._unsent[:sent]
        if due:
            _close_all(self._rights.popleft()[1])
        self._rights = deque((start - sent, copies) for start, copies in self._rights)

    def _forget_unsent(self) -> None:
        self._unsent.clear()
        while self._rights:
            _close_all(self._rights.popleft()[1])

    def receive(self, wait: Callable[[], None] = lambda: None) -> tuple[Message, list[int]] | None:
        """Wait for the next message and its descriptors; None once the peer is gone.

        Args:
            wait: called before each read that may have to wait.

        Raises:
            ChannelError: the peer sent something other than a message.
        """
        while (message := self._next()) is None:
            wait()
            if not self._read():
                return None
        return message

    def receive_available(self) -> list[tuple[Message, list[int]]]:
        """Read all that has arrived, without waiting (the controller's end).

        Raises:
            ChannelError: the peer sent something other than a message.
        """
        # A read returns at most _CHUNK bytes, and no more than one set of descriptors.
        while self._read_available():
            pass
        return self._whole_messages()

    def receive_some(self) -> list[tuple[Message, list[int]]]:
        """Read once; for a caller whose selector reports remaining data, or the end, again.

        Raises:
            ChannelError: the peer sent something other than a message.
        """
        self._read_available()
        return self._whole_messages()

    def receive_bodies(self) -> list[bytes]:
        """Serialized messages, to be passed on; their descriptors are left to take_descriptors.

        Raises:
            ChannelError: the peer sent something other than a frame.
        """
        # A read returns at most _CHUNK bytes, and no more than one set of descriptors.
        while self._read_available():
            pass
        return self._all(self._next_body)

    def take_descriptors(self, message: Message) -> list[int]:
        """The descriptors of a message that has arrived.

        Raises:
            ChannelError: the message arrived without them.
        """
        due = _descriptor_count(message)
        if len(self._descriptors) < due:
            raise ChannelError(f"{type(message).__name__} arrived without its {due} descriptors")
        return [self._descriptors.popleft() for _ in range(due)]

    def _read_available(self) -> bool:
        try:
            return not self.at_end and self._read()
        except BlockingIOError:
            return False

    def _whole_messages(self) -> list[tuple[Message, list[int]]]:
        return self._all(self._next)

    @staticmethod
    def _all(next_: Callable[[], _Read | None]) -> list[_Read]:
        found = []
        try:
            while (one := next_()) is not None:
                found.append(one)
        except ChannelError as error:
            error.before = found
            raise
        return found

    def _read(self) -> bool:
        try:
            data, ancillary, _, _ = self._recvmsg(_CHUNK, _ROOM)
        except ConnectionResetError:
            data, ancillary = b"", []
        self._received += data
        for descriptor in _descriptors(ancillary):
            # Inherited by a program that a test starts, a copy would keep the file or channel open.
            os.set_inheritable(descriptor, False)
            self._descriptors.append(descriptor)
        self.at_end = not data
        return bool(data)

    def _end_of_frame(self) -> int | None:
        if len(self._received) < _HEADER.size:
            return None
        length, number = _HEADER.unpack_from(self._received)
        # The number is checked before the rest has arrived: the length of something other than a
        # frame could be waited for until the end of the test.
        if number != self._received_count:
            raise ChannelError(f"frame {number} arrived, expected {self._received_count}")
        end: int = _HEADER.size + length
        return end if len(self._received) >= end else None

    def _next(self) -> tuple[Message, list[int]] | None:
        if (body := self._next_body()) is None:
            return None
        message = loads(body)
        return message, self.take_descriptors(message)

    def _next_body(self) -> bytes | None:
        end = self._end_of_frame()
        if end is None:
            return None
        self._received_count += 1
        body = bytes(self._received[_HEADER.size : end])
        del self._received[:end]
        return body


def _descriptors(ancillary: Iterable[tuple[int, int, bytes]]) -> Iterator[int]:
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            yield from array.array("i", data)


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _descriptor_count(message: Message) -> int:
    match message:
        case StartRank():
            return 8 + message.serve_store
        case RankReady():
            return len(message.captured)
        case RunTest():
            return message.serve_store + message.by_file
        case TerminalReply():
            return 3 if message.refusal is None else 0
        case ExtensionMessage():
            return message.descriptor_count
        case _:
            return 0


def dumps(message: Message) -> str:
    """A message, serialized."""
    return _to_json({"kind": type(message).__name__, **message.__dict__})


def is_kind(kind: type[Message], body: bytes) -> bool:
    """Whether a serialized message is of this kind."""
    return body.startswith(_beginning(kind.__name__))


@functools.cache
def _beginning(kind: str) -> bytes:
    return f'{{"kind":"{kind}"'.encode()


def loads(text: str | bytes) -> Message:
    """The deserialized message.

    Raises:
        ChannelError: the text is not a message.
    """
    try:
        body = _from_json(text if isinstance(text, str) else text.decode())
        kind = body.pop("kind")
        record = _KINDS.get(kind) or EXTENSION_KINDS[kind]
        return typing.cast("Message", _reader(record)(body))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        shown = text[:80]
        raise ChannelError(f"not a message of the protocol: {shown!r} ({error!r})") from error


def restored(kind: type[_Record], fields: dict[str, Any]) -> _Record:
    """The record without slots whose ``dataclasses.asdict`` has crossed as a part of a message."""
    hint: Any = kind
    return typing.cast("_Record", _reader(hint)(fields))


def _as_plain(value: Any) -> Any:
    """Converts what JSON lacks: records in a message, and objects in users' reports."""
    return value.__dict__ if type(value).__module__.startswith(_OURS) else repr(value)


# Not dataclasses.asdict: it deep-copies the reports, which may hold megabytes.
_to_json = json.JSONEncoder(default=_as_plain, separators=(",", ":")).encode


@functools.cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """A function that converts plain JSON into a value of this type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        readers = {name: _reader(of) for name, of in typing.get_type_hints(hint).items()}
        others = {name: read for name, read in readers.items() if read is not _as_it_is}
        return functools.partial(_read_record, typing.cast("type", hint), readers.keys(), others)
    if origin is tuple:
        read = _reader(arguments[0])
        return tuple if read is _as_it_is else lambda elements: (*map(read, elements),)
    if origin is types.UnionType:
        (inner,) = (argument for argument in arguments if argument is not type(None))
        if (read := _reader(inner)) is not _as_it_is:
            return lambda value: None if value is None else read(value)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint
    return _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _read_record(
    kind: type[Any],
    names: Set[str],
    readers: dict[str, Callable[[Any], Any]],
    body: dict[str, Any],
) -> Any:
    if body.keys() != names:
        body = {name: body[name] for name in names}
    for name, read in readers.items():
        body[name] = read(body[name])
    record: Any = object.__new__(kind)
    # Takes a part of the time of a frozen dataclass's constructor, which calls a function for each
    # field and would do nothing else here.
    record.__dict__.update(body)
    return record
