"""The ``Popen`` of a served process in a ``multiprocessing.Process``: its pid and exit code."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from multiprocessing import context, popen_spawn_posix, reduction, resource_tracker, spawn, util
from typing import Any

from pytest_ddp.extensions.adopt.ranks.served_messages import RETURNED, Inherited
from pytest_ddp.launch.rank_process import RankFiles
from pytest_ddp.system import processes
from pytest_ddp.system.stdlib import os

Make = Callable[[Sequence[int], Sequence[int]], int]
"""Creates a process with the descriptors for its start, after the first four, and with those that
its data refer to; returns its pid."""

_Popen: Any = popen_spawn_posix.Popen
_util: Any = util
_context: Any = context
"""Parts of multiprocessing that have no types."""


class ServedPopen(_Popen):  # type: ignore[misc]
    """Does as multiprocessing's own for ``spawn``, except that the spawn server starts the process.

    The process is a child of this one, so the base class can wait for it and send signals.
    """

    DupFd = Inherited

    def __init__(self, process: Any, make: Make) -> None:
        """Start the process.

        Args:
            process: the ``multiprocessing.Process``.
            make: creates the process.

        Raises:
            NotServedError: it cannot be served.
        """
        __tracebackhide__ = True
        self._make = make
        self.name: str = process.name
        self.files = RankFiles()
        """Files into which the instruments of the process write."""
        self.ended_by_test = False
        """Whether the test has terminated or killed the process."""
        self.was_joined = False
        """Whether something has waited for the end of the process."""
        self.exit_code_was_read = False
        """Whether the test has read the exit code of the process."""
        super().__init__(process)

    @property
    def has_returned(self) -> bool:
        """Whether the target has returned, and the process has ended normally."""
        return self.files.mark().phase == (RETURNED,)

    def wait(self, timeout: float | None = None) -> int | None:
        code: int | None = super().wait(timeout)
        self.was_joined |= code is not None
        return code

    def is_reaped(self, timeout: float) -> bool:
        """Whether the process ends within ``timeout`` seconds; nobody has joined it so.

        The sentinel does not show that: the kernel closes it a moment before.
        """
        if self.poll() is None:
            processes.wait_for_end([self.pid], timeout)
        return self.poll() is not None

    def duplicate_for_child(self, fd: int) -> int:
        self._fds.append(fd)
        return len(self._fds) - 1

    def _send_signal(self, sig: int) -> None:
        self.ended_by_test = True
        super()._send_signal(sig)

    def _launch(self, process_obj: Any) -> None:
        __tracebackhide__ = True
        data = self._pickled(process_obj)
        parent_r, child_w = os.pipe()
        child_r, parent_w = os.pipe()
        try:
            tracker: Any = resource_tracker.getfd()
            for_start: list[int] = [child_r, child_w, tracker, *self.files.descriptors]
            self.pid = self._make(for_start, self._fds)
        except BaseException:
            _util.close_fds(parent_r, parent_w)
            raise
        finally:
            _util.close_fds(child_r, child_w)
        self.sentinel = parent_r
        # Open for the life of this process: its closing tells the child that its parent has ended.
        self.finalizer = _util.Finalize(self, _util.close_fds, (parent_r, parent_w))
        with open(parent_w, "wb", closefd=False) as stream:
            stream.write(data)

    def _pickled(self, process_obj: Any) -> memoryview:
        __tracebackhide__ = True
        preparation = spawn.get_preparation_data(process_obj.name)
        data = io.BytesIO()
        _context.set_spawning_popen(self)
        try:
            reduction.dump(preparation, data)
            reduction.dump(process_obj, data)
        finally:
            _context.set_spawning_popen(None)
        return data.getbuffer()
