"""Live streams of a rank: output that pytest does not capture, and log records."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from pytest_ddp.protocol import log_records
from pytest_ddp.protocol.log_records import Logged, LogPath
from pytest_ddp.system.stdlib import os, selectors, socket, time

_CHUNK = 1 << 16
"""Bytes that a pipe holds."""
_BATCH = 256
"""Records that are read at a time: a rank that logs without end must not hold up the others."""
_BATCH_BYTES = 1 << 20
"""The limit of a batch for large records, in bytes."""
_ALL = 64
"""Reads of a source at most, if everything that was sent is wanted; a process that a test has left
running may write for ever."""
_LONGEST = 1 << 16
"""Characters of an unfinished line that are kept back; a longer one is shown in pieces."""
_LINE_END = re.compile(r"(\r*\n|\r+(?=[^\r\n]))")
"""Matches the end of a line. A progress bar overwrites its line with ``\\r``: each of its states is
a line here."""


@dataclass(frozen=True, slots=True)
class Text:
    """Output of a rank on a standard stream."""

    moment: float
    """When the text was read (monotonic clock)."""
    stream: str
    """``stdout`` or ``stderr``"""
    text: str

    @property
    def size(self) -> int:
        return len(self.text)


@dataclass(frozen=True, slots=True)
class LoggedPiece:
    """A log record of a rank."""

    moment: float
    """When the record was logged (monotonic clock)."""
    logged: Logged
    prefix: str

    @property
    def size(self) -> int:
        return self.logged.size


@dataclass(frozen=True, slots=True)
class NewPath:
    """A new path of the log file, set by a test."""

    moment: float
    rank: int
    path: str
    size = 0


Piece: TypeAlias = Text | LoggedPiece | NewPath


class OutputPipe:
    """A standard stream: unchanged from a single rank, line by line from one of several."""

    def __init__(self, stream: str, prefix: str) -> None:
        self._stream, self._prefix = stream, prefix
        self._descriptor, self.theirs = os.pipe()
        os.set_blocking(self._descriptor, False)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""
        self.at_end = False
        """Whether all writers have closed it."""
        self.behind: float | None = None
        """The moment of the last piece that was read, if later ones are still unread; else None."""

    def fileno(self) -> int:
        return self._descriptor

    def read(self) -> list[Piece]:
        """Read what the pipe holds, or a part of it, without waiting."""
        try:
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return []
        self.at_end = not data
        text = self._rest + self._decode(data)
        if not self._prefix:
            return self._pieces(text)
        *lines, self._rest = _LINE_END.split(text)
        whole = zip(lines[::2], lines[1::2], strict=True)
        shown = [line for line, end in whole if line.strip() or "\n" in end]
        if len(self._rest) > _LONGEST:
            shown, self._rest = [*shown, self._rest], ""
        return self._pieces("".join(f"{self._prefix}{line}\n" for line in shown))

    def rest(self) -> list[Piece]:
        """The beginning of an unfinished line."""
        rest, self._rest = self._rest.rstrip("\r"), ""
        return self._pieces(f"{self._prefix}{rest}\n" if rest else "")

    def _pieces(self, text: str) -> list[Piece]:
        return [Text(time.monotonic(), self._stream, text)] if text else []

    def close(self) -> None:
        os.close(self._descriptor)


class LogSocket:
    """Records of a rank's loggers."""

    def __init__(self, rank: int, prefix: str) -> None:
        self._rank, self._prefix = rank, prefix
        self._socket, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        self.at_end = False
        self.behind: float | None = None

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self) -> list[Piece]:
        self.behind = None
        pieces: list[Piece] = []
        size = 0
        while (received := self._receive()) is not None:
            if isinstance(received, Logged):
                pieces.append(LoggedPiece(received.moment, received, self._prefix))
                size += received.size
            else:
                pieces.append(NewPath(received.moment, self._rank, received.path))
            if len(pieces) == _BATCH or size > _BATCH_BYTES:
                self.behind = received.moment
                break
        return pieces

    def _receive(self) -> Logged | LogPath | None:
        try:
            record = log_records.receive(self._socket)
        except BlockingIOError:
            return None
        except (OSError, ValueError):
            # The test wrote into our descriptor; the log has no influence on its verdict.
            record = None
        self.at_end = record is None
        return record

    def rest(self) -> list[Piece]:
        return []

    def close(self) -> None:
        self._socket.close()


Source: TypeAlias = OutputPipe | LogSocket


class Streams:
    """All streams of one rank."""

    def __init__(self, rank: int, world_size: int) -> None:
        prefix = f"[rank {rank}] " if world_size > 1 else ""
        self._out, self._err = OutputPipe("stdout", prefix), OutputPipe("stderr", prefix)
        self._log = LogSocket(rank, prefix)
        self.sources: tuple[Source, ...] = (self._out, self._err, self._log)
        ends = self._out.theirs, self._err.theirs, self._log.theirs.fileno()
        self.descriptors: tuple[int, ...] = ends
        """The rank's ends, in the order in which they are sent."""

    def passed_on(self) -> None:
        """Close our copies of the rank's ends, now sent: a stream then ends with the rank."""
        if self.descriptors:
            os.close(self._out.theirs)
            os.close(self._err.theirs)
            self._log.theirs.close()
        self.descriptors = ()

    def close(self) -> None:
        self.passed_on()
        for source in self.sources:
            source.close()
        self.sources = ()


class PieceDisplay(Protocol):
    """An object that shows the pieces, in order of time."""

    def take(self, source: Source, pieces: list[Piece]) -> None: ...
    def due_in(self) -> float:
        """Seconds until :meth:`show` has something to show; infinite if never."""

    def show(self, *, all_: bool = False) -> None:
        """Show the pieces that are due, or all of them."""


class StreamReader:
    """Reads the streams of all ranks, for a display."""

    def __init__(self, selector: selectors.BaseSelector, display: PieceDisplay) -> None:
        self._selector, self._display = selector, display
        self._ranks: list[Streams] = []

    def add(self, streams: Streams) -> None:
        """Read the streams of a rank from now on; its ends were sent with the order to start."""
        streams.passed_on()
        self._ranks.append(streams)
        for source in streams.sources:
            self._selector.register(source.fileno(), selectors.EVENT_READ, source)

    def hear(self, source: Source) -> None:
        """Read from a source that is readable."""
        self._display.take(source, source.read())
        if source.at_end:
            self._display.take(source, source.rest())
            self._selector.unregister(source.fileno())

    def remove(self, streams: Streams) -> None:
        """Read what is left in a rank's streams, and read them no more."""
        if streams in self._ranks:
            self._ranks.remove(streams)
            self._catch_up(streams, self._readable())
            for source in self._open(streams):
                self._selector.unregister(source.fileno())
                # A process that the rank left running may still write; its output is not shown.
                source.behind = None
                self._display.take(source, [])

    def catch_up(self) -> None:
        """Show all that ranks have written and logged up to now, and the beginnings of lines."""
        readable = self._readable()
        for streams in self._ranks:
            self._catch_up(streams, readable)
        self._display.show(all_=True)

    def _readable(self) -> list[Source]:
        """The sources with something to read: nearly always none, found in one system call."""
        return [key.data for key, _ in self._selector.select(0)]

    def _catch_up(self, streams: Streams, readable: list[Source]) -> None:
        for source in self._open(streams):
            if source in readable or source.behind is not None:
                self._read_all(source)
            self._display.take(source, source.rest())

    def _read_all(self, source: Source) -> None:
        for _ in range(_ALL):
            pieces = source.read()
            self._display.take(source, pieces)
            if not pieces or source.at_end:
                break

    def _open(self, streams: Streams) -> list[Source]:
        registered = self._selector.get_map()
        return [source for source in streams.sources if source.fileno() in registered]
