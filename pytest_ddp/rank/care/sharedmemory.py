"""Cleans up what torch's shared-memory daemon leaves when it is killed.

With the "file_system" sharing strategy, each process that shares tensors has a
``torch_shm_manager``, which unlinks their files 2 s after its last client has ended. The end of a
session does not wait that long: the daemon is killed, and its work is done here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from pytest_ddp.system.own import os, shutil

_MANAGER = "torch_shm_manager"
_MANAGER_FOLDER = "torch-shm-dir-"


def is_manager(command: str) -> bool:
    """True for the command line of torch's daemon."""
    return _MANAGER in command


def manager_folders(pid: int) -> set[Path]:
    """The folder of a living daemon's socket; empty if it cannot be found."""
    try:
        entries = list(Path(f"/proc/{pid}/fd").iterdir())
        sockets = Path("/proc/net/unix").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    links = map(_target, entries)
    inodes = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    rows = (line.split(maxsplit=7) for line in sockets)
    return {
        Path(row[7]).parent
        for row in rows
        if len(row) == 8 and row[6] in inodes and _MANAGER_FOLDER in row[7]
    }


def _target(entry: Path) -> str:
    """The link's target; empty for a closed descriptor, as a daemon closes its dead clients'."""
    try:
        return os.readlink(entry)
    except OSError:
        return ""


def remove(folders: Iterable[Path], creators: Iterable[int]) -> None:
    """Remove daemons' folders, and the shared tensors of dead processes."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    dead = {f"torch_{pid}" for pid in creators}
    with contextlib.suppress(OSError):
        for path in Path("/dev/shm").glob("torch_*_*"):
            if "_".join(path.name.split("_")[:2]) in dead:
                path.unlink(missing_ok=True)
