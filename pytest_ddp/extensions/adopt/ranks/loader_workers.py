"""Workers of a ``DataLoader`` end with a served process, even if a signal ends it as they start.

torch's worker ends when the pid of its parent has changed since it first looked. If its process had
ended before that look, the worker waits for ever, and so does whoever waits for the end of its
process, by the sentinel that the worker has inherited (torch 2.13).
"""

from __future__ import annotations

import functools
from multiprocessing import parent_process
from typing import Any

from torch.utils.data._utils import worker


def watch() -> None:
    """Make workers that are forked from now on compare with the pid that multiprocessing knows."""
    original: Any = worker.ManagerWatchdog.__init__

    @functools.wraps(original)
    def init(watchdog: Any) -> None:
        original(watchdog)
        if (parent := parent_process()) is not None:
            watchdog.manager_pid = parent.pid

    init.__module__ = original.__module__
    setattr(worker.ManagerWatchdog, "__init__", init)  # noqa: B010 - mypy
