"""Waits on a rank's process groups in processes that it has forked, such as DataLoader workers.

A group does not work there: its threads are not forked. The wait has no end, and the rank itself
waits for the process, which looks like work. So the process notes what it waits in, in memory that
it shares with the rank.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from pytest_ddp.protocol.rank_status import CodeLine, ForkedWait
from pytest_ddp.rank.operations.operation import Operation
from pytest_ddp.system import processes
from pytest_ddp.system.stdlib import json, mmap, os

_SLOT = 1024
"""Bytes for one process: the length of its note, and the note."""
_SLOTS = 16
"""Places for processes: of two whose numbers leave the same remainder, one is
shown."""
_LENGTH = 2


class ForkedWaits:
    """Notes on waits, written by forked processes and read by the rank."""

    def __init__(self, groups: Iterable[str]) -> None:
        """Share the memory for the notes with processes that are forked later.

        Args:
            groups: the names of groups that exist in the rank; read in each forked process.
        """
        self.inherited: set[str] = set()
        """The groups, in a forked process, that were made before the fork; empty in the rank."""
        self._groups = groups
        self._map = mmap.mmap(-1, _SLOT * _SLOTS)
        os.register_at_fork(after_in_child=self._inherit)

    def clear(self) -> None:
        """Remove all notes."""
        self._map[:] = bytes(len(self._map))

    def begin(self, call: Operation) -> None:
        """Note a wait that begins in this forked process."""
        site = call.code_line
        place = None if site is None else (site.file, site.line)
        note = json.dumps([os.getpid(), _name(), call.name, place]).encode()
        if len(note) > _SLOT - _LENGTH:
            return
        begin = self._slot()
        self._map[begin + _LENGTH : begin + _LENGTH + len(note)] = note
        # Last: the rank may read it at any moment.
        self._map[begin : begin + _LENGTH] = len(note).to_bytes(_LENGTH)

    def end(self) -> None:
        """Remove the note of this process."""
        begin = self._slot()
        self._map[begin : begin + _LENGTH] = bytes(_LENGTH)

    def living(self) -> tuple[ForkedWait, ...]:
        """The noted waits of forked processes that are alive."""
        found = []
        for begin in range(0, len(self._map), _SLOT):
            length = int.from_bytes(self._map[begin : begin + _LENGTH])
            if not length:
                continue
            try:
                note = json.loads(self._map[begin + _LENGTH : begin + _LENGTH + length])
            except ValueError:  # it is being written
                continue
            pid, name, operation, place = note
            if processes.process_of(pid) is not None:
                site = None if place is None else CodeLine(*place)
                found.append(ForkedWait(name, operation, site))
        return tuple(found)

    def _inherit(self) -> None:
        self.inherited.update(self._groups)

    def _slot(self) -> int:
        return os.getpid() % _SLOTS * _SLOT


def _name() -> str:
    """The name of this process, for readers."""
    # Nothing is imported here: a process that uses none of them has not imported them either.
    loader: Any = sys.modules.get("torch.utils.data")
    worker = loader.get_worker_info() if loader is not None else None
    if worker is not None:
        return f"DataLoader worker {worker.id}"
    multiprocessing: Any = sys.modules.get("multiprocessing.process")
    name = multiprocessing.current_process().name if multiprocessing is not None else "MainProcess"
    return f"process {os.getpid() if name == 'MainProcess' else name}"
