"""A session's folder in the temporary directory, for what ranks that are killed cannot remove.

Controller and host both hold a lock on it and both remove it; the folders of sessions in which
both were killed are swept by the next one of the same user. A lock tells who lives also across
containers that share a temporary directory, where process numbers and start times do not.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from pytest_ddp.system.own import os, shutil, tempfile

_PREFIX = "pddp-"
"""As long as multiprocessing's own: a socket's path has room for 107 characters."""
LONGEST_TEMPDIR = 107 - len(f"/{_PREFIX}12345678/listener-12345678")
"""Characters of the temporary directory, with which multiprocessing's sockets have room in it."""


class Folder:
    """A new one (0700), held until :meth:`close`; nobody counts on it, for a test may wipe it."""

    def __init__(self) -> None:
        self.path, self.lock = "", -1
        """Empty and -1 where there is no temporary directory any more."""
        with contextlib.suppress(OSError):
            _sweep()
            while self.lock < 0:
                self.path = tempfile.mkdtemp(prefix=_PREFIX)
                # Until it is locked another session may take it for a dead one's.
                self.lock = _hold(self.path)

    @property
    def held(self) -> tuple[int, ...]:
        """The descriptor of the lock, for those who live on to remove the folder."""
        return (self.lock,) if self.lock >= 0 else ()

    def close(self) -> None:
        """Remove it."""
        remove(self.path)
        for descriptor in self.held:
            os.close(descriptor)
        self.path, self.lock = "", -1


def remove(path: str) -> None:
    """Remove a folder, if there is one."""
    if path:
        shutil.rmtree(path, ignore_errors=True)


def abandoned() -> list[Path]:
    """Folders of this user's dead sessions, which the next session will remove.

    Raises:
        FileNotFoundError: there is no temporary directory.
    """
    found = []
    for path, lock in _of_the_dead():
        os.close(lock)
        found.append(path)
    return found


def _sweep() -> None:
    for path, lock in _of_the_dead():
        with contextlib.suppress(OSError):
            remove(str(path))
            os.close(lock)


def _of_the_dead() -> Iterator[tuple[Path, int]]:
    """Folders that nobody holds, each with a lock on it that is the caller's to close."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.getuid() and (lock := _hold(str(path))) >= 0:
                yield path, lock


def _hold(path: str) -> int:
    """A descriptor with the lock on a folder; -1 if another process has it, or removed it."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
    with contextlib.suppress(OSError):
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(folder), os.stat(path)):
            return folder
    os.close(folder)
    return -1
