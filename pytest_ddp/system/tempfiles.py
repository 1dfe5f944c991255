"""A session's folder in the temporary directory, for files that killed ranks cannot remove.

Controller and host both hold a lock on it, and both remove it. If both were killed, the next
session of the same user removes it. A lock shows whether its holder is alive even across containers
that share a temporary directory, where process numbers and start times do not.
"""

from __future__ import annotations

import contextlib
import fcntl
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_ddp.system.stdlib import os, shutil, tempfile

_PREFIX = "pddp-"
"""A prefix as short as multiprocessing's own: a socket's path has room for 107 characters."""
LONGEST_TEMPDIR = 107 - len(f"/{_PREFIX}12345678/listener-12345678")
"""Characters of a temporary directory whose folder has room for multiprocessing's sockets."""


class SessionFolder:
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


# ------------------------------------------------------------------
# Files without a name, shared by host, ranks and controller.
#
# A test cannot delete them, the kernel frees them with the last process that has one open, and they
# need no folder: TMPDIR may be cleared, XDG_RUNTIME_DIR is missing in containers, and /dev/shm is
# small there and fills up. They are passed on as descriptors.


def create(name: str) -> int:
    """The descriptor of a new empty file; ``name`` is only shown in ``/proc``.

    Raises:
        pytest.UsageError: the system cannot make one.
    """
    try:
        return os.memfd_create(name)
    except OSError as error:
        raise pytest.UsageError(f"ranks need files in memory (memfd_create): {error}") from error


def path_of(descriptor: int) -> str:
    """A path for the process that has the descriptor, or a fork of it, to open the file by."""
    return f"/proc/self/fd/{descriptor}"


# ------------------------------------------------------------------
# How many files a process may open, and for how many ranks that is enough.

PER_RANK = 10
"""Descriptors in a process that holds ranks, for each of them: its channel, files, streams and
captured output."""
BESIDE = 64
"""Descriptors for what tests open in the pytest process at the same time."""


def wanted_for(ranks: int, used: int = 0) -> int:
    """The limit that is needed to start so many ranks."""
    return used + ranks * PER_RANK + BESIDE


def raise_limit(ranks: int) -> str:
    """Raise the soft limit as far as more ranks need it; returns why that is impossible, or "".

    It is not raised to the hard limit at once: ``select`` fails for descriptors above 1023.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = wanted_for(ranks, len(os.listdir("/proc/self/fd")))
    if soft == resource.RLIM_INFINITY or wanted <= soft:
        return ""
    if hard != resource.RLIM_INFINITY and wanted > hard:
        return (
            f"{ranks} more ranks need {wanted} open files in the pytest process, whose hard limit "
            f"is {hard}: raise it by ulimit -Hn {wanted} before pytest starts (as root), or by "
            f"docker run --ulimit nofile={wanted}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return ""


def raise_to_hard_limit() -> None:
    """Raise the soft limit to the hard one, in a process of ours that runs no tests."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
