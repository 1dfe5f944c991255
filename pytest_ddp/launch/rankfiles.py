"""Files into which a rank writes, readable while it runs and after its death."""

from __future__ import annotations

import contextlib
from pathlib import Path

from pytest_ddp.system import memfile
from pytest_ddp.system.own import os
from pytest_ddp.wire import kept, marker


class RankFiles:
    """The files of one rank; :class:`pytest_ddp.wire.protocol.StartRank` carries them to it."""

    def __init__(self) -> None:
        self.faults, self.children, self.page, self.trace_file = self.descriptors = tuple(
            memfile.create(f"pytest-ddp {name}")
            for name in ("stacks", "stacks of children", "phase", "trace")
        )
        """In the order in which they are sent."""

    def begin(self) -> None:
        """Discard stacks and traces that were written before now."""
        for descriptor in (self.faults, self.children, self.trace_file):
            # Safe while a rank writes, since it appends. A trace is long, and held in memory.
            os.ftruncate(descriptor, 0)

    def stacks(self) -> str:
        """The output of faulthandler since :meth:`begin`."""
        return _read(self.faults)

    def stacks_of_children(self) -> str:
        """The output of faulthandler in processes that the rank has forked."""
        return _read(self.children)

    def mark(self) -> marker.Mark:
        """The last phase of the rank."""
        return marker.read(Path(memfile.path_of(self.page)))

    def untold(self) -> kept.Untold:
        """Reports that the rank holds back until the end of its test."""
        return kept.read(Path(memfile.path_of(self.page)))

    def trace(self) -> str:
        """The events of the rank for ``--ddp-trace`` since :meth:`begin`; empty without it."""
        return _read(self.trace_file)

    def has_fatal_stack(self) -> bool:
        """True if the rank has written the stack of a fatal signal since :meth:`begin`."""
        return "Fatal Python error" in self.stacks()

    def close(self) -> None:
        """Close the files."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        # The kernel may give the numbers to other files.
        self.faults = self.children = self.page = self.trace_file = -1
        self.descriptors = ()


def _read(descriptor: int) -> str:
    with contextlib.suppress(OSError):
        # Nearly always the file is empty, and fstat costs a tenth of a read.
        if size := os.fstat(descriptor).st_size:
            return os.pread(descriptor, size, 0).decode(errors="replace")
    return ""
