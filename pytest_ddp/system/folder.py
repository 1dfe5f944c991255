"""A session's folder in the temporary directory, for files that killed ranks cannot remove.

Controller and host both hold a lock on it, and both remove it. If both were killed, the next
session of the same user removes it. A lock shows whether its holder is alive even across containers
that share a temporary directory, where process numbers and start times do not.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from pytest_ddp.system.own import os, shutil, tempfile

_PREFIX = "pddp-"
"""As short as multiprocessing's own: a socket's path has room for 107 characters."""
LONGEST_TEMPDIR = 107 - len(f"/{_PREFIX}12345678/listener-12345678")
"""Characters of a temporary directory whose folder has room for multiprocessing's sockets."""


class Folder:
    """A new folder (0700), held until :meth:`close`; a test may remove it at any time."""

    def __init__(self) -> None:
        self.path, self.lock = "", -1
        """Empty and -1 if there is no temporary directory any more."""
        with contextlib.suppress(OSError):
            _sweep()
            # Until the new folder is locked, another session may remove it as a dead one's.
            while self.lock < 0:
                self.path = tempfile.mkdtemp(prefix=_PREFIX)
                self.lock = _hold(self.path)

    @property
    def held(self) -> tuple[int, ...]:
        """The descriptor of the lock, for processes that live on to remove the folder."""
        return (self.lock,) if self.lock >= 0 else ()

    def close(self) -> None:
        """Remove the folder, and release the lock."""
        remove(self.path)
        for descriptor in self.held:
            os.close(descriptor)
        self.path, self.lock = "", -1


def remove(path: str) -> None:
    """Remove a folder, if it exists."""
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
    """Folders that no process holds, each with a lock on it, which the caller has to close."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.getuid() and (lock := _hold(str(path))) >= 0:
                yield path, lock


def _hold(path: str) -> int:
    """A descriptor with the lock on a folder; -1 if another process holds or has removed it."""
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
