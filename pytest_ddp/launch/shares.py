"""Locks on GPUs, whole or in equal shares, which the kernel releases when their process ends.

A share is a range of bytes of the GPU's lock file, none of which is ever written: halves and thirds
overlap as they would on the GPU, so that tests with shares of different sizes exclude each other
exactly where they overlap. The ranges are locked as open file descriptions (``F_OFD_SETLK``), since
locks of a process would not exclude its own other leases, and closing one lease would release all.

Source: fcntl_locking(2), "Open file description locks".
"""

from __future__ import annotations

import contextlib
import fcntl
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_ddp.system.own import os

_RANGE = 720_720
"""Bytes that represent a whole GPU: shares up to sixteenths divide it without a remainder."""
_FLOCK = "hhqqi4x"
"""``struct flock`` on 64-bit Linux: type, whence, start, length, process."""


@dataclass(frozen=True, slots=True)
class Share:
    """One of ``of`` equal parts of a GPU; 0 of 1 is all of it."""

    index: int = 0
    of: int = 1

    @property
    def suffix(self) -> str:
        """Suffix of its note's file name."""
        return "" if self.of == 1 else f".{self.index + 1}-of-{self.of}"

    @property
    def words(self) -> str:
        return "" if self.of == 1 else f", share {self.index + 1} of {self.of},"

    def request(self, kind: int) -> bytes:
        """The ``struct flock`` for ``fcntl``; ``kind`` is its type."""
        start = self.index * _RANGE // self.of
        end = (self.index + 1) * _RANGE // self.of
        return struct.pack(_FLOCK, kind, os.SEEK_SET, start, end - start, 0)


def shares_of(ranks_per_gpu: int) -> list[Share]:
    """The shares of a GPU for tests with so many ranks on one GPU."""
    return [Share(index, ranks_per_gpu) for index in range(ranks_per_gpu)]


@dataclass(frozen=True, slots=True)
class Locks:
    """Takes locks in a folder, until ``held`` is closed, each with a note that names its holder."""

    folder: Path
    holder: str
    held: contextlib.ExitStack

    def take(self, name: str, share: Share = Share()) -> bool:
        """Lock a share of the resource ``name``; False if a part of it is locked already."""
        file = _opened(self.folder, name)
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, share.request(fcntl.F_WRLCK))
        except (BlockingIOError, PermissionError):  # the manual page allows either
            os.close(file)
            return False
        # The note after the lock: two processes would write one file.
        self.held.callback(os.close, file)
        note = self.folder / f"{name}{share.suffix}.holder"
        note.write_text(f"process {os.getpid()}" + f" ({self.holder})" * bool(self.holder))
        self.held.callback(note.unlink, missing_ok=True)
        return True


def holders(folder: Path, name: str) -> Iterator[tuple[Share, str]]:
    """The locked shares of the resource ``name``, with their holders according to the notes.

    A process that was killed leaves its note, but not its lock.
    """
    for note in sorted(folder.glob(f"{name}*.holder")):
        share = _share_of(note.name.removesuffix(".holder").removeprefix(name))
        if share is not None and _is_locked(folder, name, share):
            with contextlib.suppress(FileNotFoundError):  # released just now
                yield share, note.read_text()


def _share_of(suffix: str) -> Share | None:
    if not suffix:
        return Share()
    index, _, of = suffix[1:].partition("-of-")
    return Share(int(index) - 1, int(of)) if index.isdecimal() and of.isdecimal() else None


def _is_locked(folder: Path, name: str, share: Share) -> bool:
    file = _opened(folder, name)
    try:
        found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, share.request(fcntl.F_WRLCK))
    finally:
        os.close(file)
    kind: int = struct.unpack(_FLOCK, found)[0]
    return kind != fcntl.F_UNLCK


def _opened(folder: Path, name: str) -> int:
    return os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
