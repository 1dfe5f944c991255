"""What an agent holds for the ranks of its machine, as a launcher does on one machine.

These are each rank's descriptors, the sockets at which ranks meet whose rank 0 is here, and what
ranks leave for a coverage report, which is made on node 0.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from pytest_ddp.extensions.machines.agent_connection import FrameKind, WireFrame
from pytest_ddp.extensions.machines.rank_proxy import FILES, LOG
from pytest_ddp.launch.rank_process import RankFiles
from pytest_ddp.launch.streams import Streams
from pytest_ddp.protocol import log_records
from pytest_ddp.protocol.channel import Channel
from pytest_ddp.protocol.host_messages import CoverageSettings, StartRank
from pytest_ddp.protocol.messages import RunTest
from pytest_ddp.system.stdlib import os, socket
from pytest_ddp.system.tempfiles import SessionFolder

_CHUNK = 1 << 16
_MOST = 64
"""How often a stream is read at a time: a process that a test has left behind may write for
ever."""


class LocalRank:
    """The launcher's descriptors of a rank, without the launcher's decisions."""

    def __init__(self, start: StartRank) -> None:
        self.serial = start.serial
        self.environment = start.environment
        """The torchrun variables that were last sent to the rank."""
        self.channel, self.theirs = Channel.pair()
        self.files = RankFiles()
        self._streams = Streams(start.rank, start.world.world_size)
        out, err, log = self._streams.sources
        self._log = socket.socket(fileno=os.dup(log.fileno()))
        self._outputs = out.fileno(), err.fileno()
        self._open = [0, 1, LOG]
        """The rank's streams that are not at their end."""
        self._captured: list[int] = []
        self._sent: dict[int, bytes] = {}
        """The content of each file that the coordinator already has."""
        self.pid: int | None = None
        self.why = ""
        """Why this agent killed the rank; empty if it did not."""

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
        """Take the descriptors of the rank's capture files."""
        self._captured = descriptors

    def begin(self) -> None:
        """Clear the files, whose content belongs to earlier tests."""
        self.files.begin()
        self._sent.clear()

    def written(self, part: int) -> Iterator[WireFrame]:
        """Yield frames with the output that has arrived on one of the rank's streams."""
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


# ------------------------------------------------------------------ ports

_BACKLOG = 4096
"""Backlog of the store, to which the ranks of all machines connect at the same time."""


class Ports:
    """Sockets that listen until they are passed to a rank 0."""

    def __init__(self, address: str) -> None:
        """Listen at this address only: the machine's other addresses may be public."""
        self._address = address
        self._listening: dict[int, socket.socket] = {}

    def open(self) -> int:
        """Open a socket; return its port."""
        listening = socket.create_server((self._address, 0), backlog=_BACKLOG)
        number: int = listening.getsockname()[1]
        self._listening[number] = listening
        return number

    def for_start(self, start: StartRank) -> AbstractContextManager[tuple[int, ...]]:
        """The descriptor by which a rank 0 serves from its start on; empty for other ranks.

        The user's code may create its process group at import, as under torchrun.
        """
        return self._given(start.environment, start.world.keeps_group and start.rank == 0)

    def for_test(
        self, rank: LocalRank, run_test: RunTest
    ) -> AbstractContextManager[tuple[int, ...]]:
        """The descriptor for a rank 0 that has not got it with an earlier order; else empty."""
        rank.environment |= run_test.environment
        return self._given(rank.environment, rank.environment["RANK"] == "0")

    @contextmanager
    def _given(self, environment: Mapping[str, str], serves: bool) -> Iterator[tuple[int, ...]]:
        number = int(environment["MASTER_PORT"])
        listening = self._listening.pop(number, None) if serves else None
        with listening or nullcontext():
            yield () if listening is None else (listening.fileno(),)


# ------------------------------------------------------------------ coverage

_NAME = "coverage"


class CoverageData:
    """Keeps the files of ranks in its own folder until they are sent: the host removes its folder.

    Also on node 0: if machines share a file system, pytest-cov on a node that starts late removes
    the files beside the data file to which ranks would write.
    """

    def __init__(self) -> None:
        self._folder: SessionFolder | None = None

    def redirected(self, coverage: CoverageSettings | None) -> CoverageSettings | None:
        """The controller's settings with another data file."""
        if coverage is None:
            return None
        if self._folder is None:
            self._folder = SessionFolder()
        return replace(coverage, data_file=f"{self._folder.path}/{_NAME}")

    def frames(self) -> Iterator[WireFrame]:
        """Return all files of data, which the coordinator writes beside those of node 0."""
        folder = "" if self._folder is None else self._folder.path
        for file in glob.glob(f"{_NAME}.*", root_dir=folder) if folder else ():
            suffix = file.removeprefix(f"{_NAME}.").encode()
            yield WireFrame(
                FrameKind.COVERAGE, data=suffix + b"\0" + Path(folder, file).read_bytes()
            )

    def close(self) -> None:
        """Remove the folder."""
        if self._folder is not None:
            self._folder.close()
