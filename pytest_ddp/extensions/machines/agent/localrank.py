"""One rank of this machine, between its descriptors and the connection to the hub."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_ddp.extensions.machines.agent_connection import FrameKind, WireFrame
from pytest_ddp.extensions.machines.rank_proxy import FILES, LOG
from pytest_ddp.launch.rank_process import RankFiles
from pytest_ddp.launch.streams import Streams
from pytest_ddp.protocol import log_records
from pytest_ddp.protocol.channel import Channel
from pytest_ddp.protocol.host_messages import StartRank
from pytest_ddp.system.stdlib import os, socket

_CHUNK = 1 << 16
_MOST = 64
"""How often a stream is read at a time: a process that a test has left behind may write for
ever."""


class LocalRank:
    """The launcher's descriptors of a rank, without the launcher's decisions."""

    def __init__(self, order: StartRank) -> None:
        self.serial = order.serial
        self.environment = order.environment
        """The torchrun variables that it was sent last."""
        self.channel, self.theirs = Channel.pair()
        self.files = RankFiles()
        self._streams = Streams(order.rank, order.world.world_size)
        out, err, log = self._streams.sources
        self._log = socket.socket(fileno=os.dup(log.fileno()))
        self._outputs = out.fileno(), err.fileno()
        self._open = [0, 1, LOG]
        """Streams that are not at their end."""
        self._captured: list[int] = []
        self._sent: dict[int, bytes] = {}
        """What the hub has of each file."""
        self.pid: int | None = None
        self.why = ""
        """Why this agent had it killed."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What travels to the rank, in its order."""
        return (self.theirs.fileno(), *self.files.descriptors, *self._streams.descriptors)

    def passed_on(self) -> None:
        """The host has its descriptors."""
        self.theirs.close()
        self._streams.passed_on()

    def sources(self) -> dict[int, int]:
        """Descriptors to wait for, by stream."""
        known = (*self._outputs, self._log.fileno())
        return {part: known[part] for part in self._open}

    def captures(self, descriptors: list[int]) -> None:
        """Its capture files are there."""
        self._captured = descriptors

    def begin(self) -> None:
        """Clear the files: what is in them belongs to tests before the one that begins."""
        self.files.begin()
        self._sent.clear()

    def written(self, part: int) -> Iterator[WireFrame]:
        """What has come by a stream."""
        for _ in range(_MOST):
            try:
                data = self._read(part)
            except BlockingIOError:
                return
            except OSError:
                # The test wrote into our descriptor; its log is no part of its verdict.
                data = b""
            if not data:
                self._open.remove(part)
                return
            yield WireFrame(FrameKind.STREAM, self.serial, part, data)

    def _read(self, part: int) -> bytes:
        if part == LOG:
            return log_records.receive_packet(self._log)
        return os.read(self._outputs[part], _CHUNK)

    def left(
        self, *, all_: bool = False, page: bool = True, trace: bool = False
    ) -> Iterator[WireFrame]:
        """The files that are not as the hub has them.

        Args:
            all_: also captured output.
            page: also the page, which changes with each phase.
            trace: also what was written for ``--ddp-trace``: the whole of it, which grows.
        """
        files = [*self.files.descriptors, *(self._captured if all_ else ())]
        for part, descriptor in enumerate(files):
            if descriptor == self.files.page and not page:
                continue
            if descriptor == self.files.trace_file and not trace:
                continue
            size = os.fstat(descriptor).st_size
            known = self._sent.get(part, b"")
            if not size and not known:
                continue
            content = os.pread(descriptor, size, 0)
            if content != known:
                # What was captured is sent once, and is long.
                self._sent[part] = content if part < FILES else b""
                yield WireFrame(FrameKind.FILE, self.serial, part, content)

    def rest(self) -> Iterator[WireFrame]:
        """All that is left of a rank that is gone, but its last messages."""
        for part in list(self._open):
            yield from self.written(part)
        yield from self.left(all_=True, trace=True)

    def close(self) -> None:
        self.channel.close()
        self._log.close()
        self._streams.close()
        self.files.close()
        for descriptor in self._captured:
            os.close(descriptor)
