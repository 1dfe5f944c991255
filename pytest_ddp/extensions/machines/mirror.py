"""What the launcher has handed out for one rank, kept as the rank's machine tells."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from typing import cast

from pytest_ddp.system import memfile
from pytest_ddp.system.own import json, os, socket, time
from pytest_ddp.wire import logged
from pytest_ddp.wire.channel import Channel, is_a, loads
from pytest_ddp.wire.hosting import RankExited
from pytest_ddp.wire.protocol import RankReady

FILES = 4
"""Those of ``RankFiles``."""
LOG = 2
"""The part of a stream frame that holds log records."""


_DEATH_LIMIT = 1.0
"""Seconds from the end of a rank's channel until the launcher sees it, which kills such a rank
soon: most are dying, and their own end says more. It is on its way, over a network."""


class Mirror:
    """A rank of another machine, as the launcher meets it here."""

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
        """Its end, which is told after all that it has said."""

    @property
    def unsent(self) -> bool:
        return self.exited is not None or self.channel.unsent or any(self._waiting)

    @property
    def is_busy(self) -> bool:
        """Whether :meth:`flush` has something to do, now or a little later."""
        return self._hangs_up_at < math.inf or self.unsent

    def tell(self, body: bytes) -> None:
        """Say what the rank has said."""
        if is_a(RankReady, body):
            ready = cast("RankReady", loads(body))
            self._captured = [memfile.create(f"pytest-ddp {name}") for name in ready.captured]
            self.channel.send_body(body, self._captured)
        else:
            self.channel.send_body(body)

    def hang_up(self) -> None:
        """The rank has closed its end, after what it has said until now."""
        self._hangs_up_at = time.monotonic() + _DEATH_LIMIT

    def keep(self, part: int, content: bytes) -> None:
        """Have a file hold what the rank's own holds."""
        files = [*self._files, *self._captured]
        if part < len(files):
            os.ftruncate(files[part], len(content))
            os.pwrite(files[part], content, 0)

    def write(self, part: int, data: bytes) -> None:
        """Write to a stream what the rank wrote, or log its record."""
        if part == LOG:
            data = _as_of_now(data)
        self._waiting[part].append(data)
        self.flush()

    def flush(self) -> bool:
        """Pass on what waits; True if it was the last of a rank that is gone."""
        self.channel.flush()
        if time.monotonic() > self._hangs_up_at and not self.channel.unsent:
            self._hangs_up_at = math.inf
            with contextlib.suppress(OSError):  # nor does the launcher listen any more
                self._socket.shutdown(socket.SHUT_WR)
        for part, waiting in enumerate(self._waiting):
            while waiting and self._pass_on(part, waiting):
                """One after the other."""
        return self.exited is not None and not (self.channel.unsent or any(self._waiting))

    def _pass_on(self, part: int, waiting: deque[bytes]) -> bool:
        try:
            if part == LOG:
                logged.send(self._log, waiting[0])
                waiting.popleft()
            elif written := os.write(self._streams[part], waiting[0]):
                waiting[0] = waiting[0][written:]
                if not waiting[0]:
                    waiting.popleft()
        except BlockingIOError:
            return False
        except OSError:
            # Nobody reads it any more.
            waiting.clear()
        return True

    def close(self) -> None:
        """Let go of all, by which the launcher sees the ends of its streams."""
        self.channel.close()
        self._log.close()
        for descriptor in (*self._files, *self._streams, *self._captured):
            os.close(descriptor)


def _as_of_now(record: bytes) -> bytes:
    """A log record with our time: those of all machines are shown in the order of their coming."""
    try:
        _, *rest = json.loads(record)
    except (ValueError, TypeError):
        return record  # A test wrote into the rank's descriptor; the launcher knows what to do.
    return json.dumps((time.monotonic(), *rest)).encode()
