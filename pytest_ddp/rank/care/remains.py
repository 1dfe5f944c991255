"""What multiprocessing leaves of a rank that is killed: shared memory, semaphores, sockets.

Its resource tracker removes the first two once the last process that could use them is gone, but
not if it is killed with the rank's process group. Sockets lie in a temporary folder that only a
process which ends well removes; here it is the session's.
"""

from __future__ import annotations

from multiprocessing import process, util
from typing import Any

from pytest_ddp.system.own import os, subprocess

TRACKER = "resource_tracker import main"
"""Part of the command line of a tracker: of multiprocessing's, and of joblib's."""
_KEY = "tempdir"


def leave_to_others(folder: str) -> None:
    """Arrange it.

    Args:
        folder: the session's; empty if there is none.
    """
    _set_trackers_apart()
    current: Any = process.current_process()
    if folder:
        current._config = _Config(current._config | {_KEY: folder})


class _Config(dict[str, Any]):
    """What multiprocessing's child processes inherit; the folder only while it is there.

    Without it each process makes one of its own, as it does in plain Python.
    """

    def get(self, key: str, default: Any = None) -> Any:
        found = super().get(key, default)
        return default if key == _KEY and found and not os.path.isdir(found) else found

    def copy(self) -> dict[str, Any]:
        return {key: value for key, value in self.items() if key != _KEY or self.get(key)}


def _set_trackers_apart() -> None:
    """Have a tracker lead a session of its own, so that nobody kills it with the rank."""
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
