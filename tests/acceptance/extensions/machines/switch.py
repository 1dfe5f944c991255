"""A network in user space, for machines that are network namespaces: late, hanging, lossy.

Each machine's interface is a TAP device whose other side is a thread here, so that all that the
machines say to each other goes through it: the line to the coordinator, torchrun's store, the
ranks' own store and gloo's connections. The kernel's netem would do, but is no part of every
kernel.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence

_TUNSETIFF = 0x400454CA
_TAP_WITHOUT_HEADER = 0x0002 | 0x1000
_LONGEST_NAME = 16
_MTU = "32000"
"""Long frames are fewer turns of a Python loop."""
_FRAME = 1 << 16
_SEED = 20


def problem() -> str:
    """Why there can be no switch here; empty if there can."""
    return "" if os.access("/dev/net/tun", os.R_OK | os.W_OK) else "no /dev/net/tun"


class Switch:
    """Passes frames from each machine to all others, with the delays and losses that a test
    sets."""

    def __init__(self) -> None:
        self.delay = 0.0
        """Seconds that each frame is under way."""
        self.loss = 0.0
        """Which part of all frames is lost."""
        self.passed = 0
        """Frames passed on."""
        self.lost = 0
        self._holds = False
        self._random = random.Random(_SEED)
        self._taps: list[int] = []
        self._waiting: list[tuple[float, int, int, bytes]] = []
        """When a frame is due, its number, where it came from."""
        self._count = 0
        self._is_over = False
        self._thread = threading.Thread(target=self._work, daemon=True)

    @contextlib.contextmanager
    def between(self, mark: str, spaces: Sequence[str], device: str) -> Iterator[None]:
        """Be the network of these namespaces, each of which gets a device, for a block."""
        for number, space in enumerate(spaces):
            name = f"{mark}{number}"
            self._taps.append(_tap(name))
            # It is made here and moved: a thread cannot enter a namespace in Python 3.11.
            moved = ["ip", "link", "set", name, "netns", space, "name", device, "mtu", _MTU]
            subprocess.run(moved, check=True, capture_output=True)
        self._thread.start()
        try:
            yield
        finally:
            self._is_over = True
            self._thread.join()
            for tap in self._taps:
                os.close(tap)

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        """Hold every frame back for a block, and deliver all of them after it."""
        self._holds = True
        try:
            yield
        finally:
            self._holds = False

    @contextlib.contextmanager
    def late(self, seconds: float) -> Iterator[None]:
        """Have each frame be under way for so long, in a block."""
        self.delay = seconds
        try:
            yield
        finally:
            self.delay = 0.0

    @contextlib.contextmanager
    def losing(self, part: float) -> Iterator[None]:
        """Lose a part of all frames in a block; 1 is a network that is cut."""
        self.loss = part
        try:
            yield
        finally:
            self.loss = 0.0

    def _work(self) -> None:
        while not self._is_over:
            ready, _, _ = select.select(self._taps, [], [], self._until_next())
            for tap in ready:
                self._take(tap)
            if not self._holds:
                self._pass_on()

    def _until_next(self) -> float:
        if self._holds:
            return 0.02
        if not self._waiting:
            return 0.05
        return max(0.0, min(0.05, self._waiting[0][0] - time.monotonic()))

    def _take(self, tap: int) -> None:
        try:
            frame = os.read(tap, _FRAME)
        except OSError:
            return  # its machine is on the way down
        if self._random.random() < self.loss:
            self.lost += 1
            return
        self._count += 1
        heapq.heappush(self._waiting, (time.monotonic() + self.delay, self._count, tap, frame))

    def _pass_on(self) -> None:
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            _, _, source, frame = heapq.heappop(self._waiting)
            self.passed += 1
            for tap in self._taps:
                if tap != source:
                    with contextlib.suppress(OSError):
                        os.write(tap, frame)


def _tap(name: str) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    assert len(name) < _LONGEST_NAME, name
    request = struct.pack(f"{_LONGEST_NAME}sH22x", name.encode(), _TAP_WITHOUT_HEADER)
    fcntl.ioctl(descriptor, _TUNSETIFF, request)
    return descriptor
