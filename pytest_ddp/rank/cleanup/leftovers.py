"""What multiprocessing leaves of a rank that is killed: shared memory, semaphores, sockets.

Its resource tracker removes the first two once the last process that could use them has ended, but
not if the tracker is killed with the rank's process group. Sockets are in a temporary folder, which
only a process that exits normally removes; here that is the session's folder.
"""

from __future__ import annotations

from multiprocessing import process, util
from typing import Any

from pytest_ddp.system.stdlib import os, subprocess

TRACKER = "resource_tracker import main"
"""A part of the command line of a resource tracker: multiprocessing's, and joblib's."""
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


def is_manager(command: str) -> bool:
    """True for the command line of torch's shared-memory daemon.

    With the "file_system" sharing strategy, each process that shares tensors has one. It removes
    their files from ``/dev/shm`` 2 s after its last client has ended, and ends. It alone knows the
    files: their names have the number of the process that made them, which may be one that a rank
    has reaped, such as a DataLoader worker.
    """
    return "torch_shm_manager" in command
