"""The descriptors of the launcher for one rank, kept up to date by the rank's machine."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from typing import cast

from pytest_ddp.protocol import log_records
from pytest_ddp.protocol.channel import Channel, is_kind, loads
from pytest_ddp.protocol.host_messages import RankExited
from pytest_ddp.protocol.messages import RankReady
from pytest_ddp.system import tempfiles
from pytest_ddp.system.stdlib import json, os, socket, time

FILES = 4
"""How many files ``RankFiles`` has, which the descriptors of a rank are for."""
LOG = 2
"""The part of a stream frame that holds log records."""


_DEATH_LIMIT = 1.0
"""Seconds from the end of a rank's channel until the launcher sees it and kills the rank soon: most
such ranks are dying, and the report of their own end, which explains more, is still on its way."""


class RankProxy:
    """The local end of a rank of another machine."""

    def __init__(self, node: int, descriptors: list[int]) -> None:
        self.node = node
        theirs, *others = descriptors
        self._socket = socket.socket(fileno=theirs)
        self._socket.setblocking(False)
        self.channel = Channel(self._socket)
        self._files = others[:FILES]
        self._streams = others[FILES : FILES + LOG]
        self._log = socket.socket(fileno=others[FILES + LOG])
        self._log.setblocking(False)
        for stream in self._streams:
            os.set_blocking(stream, False)
        self._waiting: tuple[deque[bytes], ...] = (deque(), deque(), deque())
        """What the launcher has not read yet, by stream."""
        self._captured: list[int] = []
        self._hangs_up_at = math.inf
        self.exited: RankExited | None = None
        """The rank's end, which is reported after all its messages."""

    @property
    def unsent(self) -> bool:
        return self.exited is not None or self.channel.unsent or any(self._waiting)

    @property
    def is_busy(self) -> bool:
        """Whether :meth:`flush` has something to do, now or a little later."""
        return self._hangs_up_at < math.inf or self.unsent

    def send(self, body: bytes) -> None:
        """Pass on a message of the rank."""
        if is_kind(RankReady, body):
            ready = cast("RankReady", loads(body))
            self._captured = [tempfiles.create(f"pytest-ddp {name}") for name in ready.captured]
            self.channel.send_body(body, self._captured)
        else:
            self.channel.send_body(body)

    def hang_up(self) -> None:
        """Close the channel as the rank has done, after its messages until now."""
        self._hangs_up_at = time.monotonic() + _DEATH_LIMIT

    def keep(self, part: int, content: bytes) -> None:
        """Give a file the content of the rank's own file."""
        files = [*self._files, *self._captured]
        if part < len(files):
            os.ftruncate(files[part], len(content))
            os.pwrite(files[part], content, 0)

    def write(self, part: int, data: bytes) -> None:
        """Write output of the rank to its stream, or send its log record."""
        if part == LOG:
            data = _as_of_now(data)
        self._waiting[part].append(data)
        self.flush()

    def flush(self) -> bool:
        """Pass on what waits; True if that was the last of a rank that is gone."""
        self.channel.flush()
        if time.monotonic() > self._hangs_up_at and not self.channel.unsent:
            self._hangs_up_at = math.inf
            with contextlib.suppress(OSError):  # the launcher has closed its end
                self._socket.shutdown(socket.SHUT_WR)
        for part, waiting in enumerate(self._waiting):
            while waiting and self._pass_on(part, waiting):
                """Passes on one piece each time, in order."""
        return self.exited is not None and not (self.channel.unsent or any(self._waiting))

    def _pass_on(self, part: int, waiting: deque[bytes]) -> bool:
        try:
            if part == LOG:
                log_records.send(self._log, waiting[0])
                waiting.popleft()
            elif written := os.write(self._streams[part], waiting[0]):
                waiting[0] = waiting[0][written:]
                if not waiting[0]:
                    waiting.popleft()
        except BlockingIOError:
            return False
        except OSError:
            # The launcher has closed it.
            waiting.clear()
        return True

    def close(self) -> None:
        """Close all descriptors, which ends the launcher's streams."""
        self.channel.close()
        self._log.close()
        for descriptor in (*self._files, *self._streams, *self._captured):
            os.close(descriptor)


def _as_of_now(record: bytes) -> bytes:
    """A log record with the time of now: records of all machines are shown as they arrive."""
    try:
        _, *rest = json.loads(record)
    except (ValueError, TypeError):
        return record  # a test wrote into the rank's descriptor; the launcher ignores it
    return json.dumps((time.monotonic(), *rest)).encode()
