"""One rank of this machine, between its descriptors and the connection to the coordinator."""

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

    def __init__(self, start: StartRank) -> None:
        self.serial = start.serial
        self.environment = start.environment
        """The torchrun variables that were last sent to it."""
        self.channel, self.theirs = Channel.pair()
        self.files = RankFiles()
        self._streams = Streams(start.rank, start.world.world_size)
        out, err, log = self._streams.sources
        self._log = socket.socket(fileno=os.dup(log.fileno()))
        self._outputs = out.fileno(), err.fileno()
        self._open = [0, 1, LOG]
        """Streams that are not at their end."""
        self._captured: list[int] = []
        self._sent: dict[int, bytes] = {}
        """The content of each file that the coordinator already has."""
        self.pid: int | None = None
        self.why = ""
        """Why this agent killed it; empty if it did not."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors that are sent to the rank, in their order."""
        return (self.theirs.fileno(), *self.files.descriptors, *self._streams.descriptors)

    def passed_on(self) -> None:
        """Close our copies, as the host has its descriptors."""
        self.theirs.close()
        self._streams.passed_on()

    def sources(self) -> dict[int, int]:
        """Descriptors to wait for, by stream."""
        known = (*self._outputs, self._log.fileno())
        return {part: known[part] for part in self._open}

    def captures(self, descriptors: list[int]) -> None:
        """Take the descriptors of its capture files."""
        self._captured = descriptors

    def begin(self) -> None:
        """Clear the files, whose content belongs to earlier tests."""
        self.files.begin()
        self._sent.clear()

    def written(self, part: int) -> Iterator[WireFrame]:
        """Frames with the output that has arrived on a stream."""
        for _ in range(_MOST):
            try:
                data = self._read(part)
            except BlockingIOError:
                return
            except OSError:
                # The test wrote into the plugin's descriptor; the log does not affect the verdict.
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
        """Frames of the files that have changed since they were sent to the coordinator.

        Args:
            all_: also captured output.
            page: also the page, which changes with each phase.
            trace: also the file of ``--ddp-trace``, which is sent whole and grows.
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
                # Captured output is long and sent only once, so no copy is kept.
                self._sent[part] = content if part < FILES else b""
                yield WireFrame(FrameKind.FILE, self.serial, part, content)

    def rest(self) -> Iterator[WireFrame]:
        """All remaining frames of a rank that has ended, without its last messages."""
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
