"""What multiprocessing leaves of a rank that is killed: shared memory, semaphores, sockets.

Its resource tracker removes the first two once the last process that could use them has ended, but
not if the tracker is killed with the rank's process group. Sockets are in a temporary folder, which
only a process that exits normally removes; here that is the session's folder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from multiprocessing import process, util
from pathlib import Path
from typing import Any

from pytest_ddp.system.stdlib import os, shutil, subprocess

TRACKER = "resource_tracker import main"
"""In the command line of a resource tracker: multiprocessing's, and joblib's."""
_KEY = "tempdir"


def outlive_rank(folder: str) -> None:
    """Make trackers outlive this rank, and put sockets into the session's folder.

    Args:
        folder: the session's folder; empty if it has none.
    """
    _set_trackers_apart()
    current: Any = process.current_process()
    if folder:
        current._config = _Config(current._config | {_KEY: folder})


class _Config(dict[str, Any]):
    """What multiprocessing's child processes inherit; the folder only while it exists.

    Without it each process makes its own folder, as in plain Python.
    """

    def get(self, key: str, default: Any = None) -> Any:
        found = super().get(key, default)
        return default if key == _KEY and found and not os.path.isdir(found) else found

    def copy(self) -> dict[str, Any]:
        return {key: value for key, value in self.items() if key != _KEY or self.get(key)}


def _set_trackers_apart() -> None:
    """Start trackers in a session of their own, so that they are not killed with the rank."""
    module: Any = util
    original = module.spawnv_passfds

    def spawnv_passfds(path: Any, args: Any, passfds: Any) -> int:
        if TRACKER not in args[-1]:
            pid: int = original(path, args, passfds)
            return pid
        tracker = subprocess.Popen(
            args, executable=path, pass_fds=passfds, start_new_session=True, restore_signals=False
        )
        tracker.returncode = 0  # multiprocessing reaps it; Popen must not try
        return tracker.pid

    module.spawnv_passfds = spawnv_passfds


# ------------------------------------------------------------------
# Cleans up what torch's shared-memory daemon leaves when it is killed.
#
# With the "file_system" sharing strategy, each process that shares tensors has a
# ``torch_shm_manager``, which unlinks their files 2 s after its last client has ended. The end of a
# session does not wait that long: the daemon is killed, and its work is done here.

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
