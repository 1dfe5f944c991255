"""What a rank leaves in files, to be read while it lives and after its death."""

from __future__ import annotations

import contextlib
from pathlib import Path

from pytest_ddp.system import memfile
from pytest_ddp.system.own import os
from pytest_ddp.wire import kept, marker


class RankFiles:
    """The files of one rank; :class:`pytest_ddp.wire.protocol.StartRank` takes them to it."""

    def __init__(self) -> None:
        self.faults, self.children, self.page, self.trace_file = self.descriptors = tuple(
            memfile.create(f"pytest-ddp {name}")
            for name in ("stacks", "stacks of children", "phase", "trace")
        )
        """In the order in which they are passed on."""

    def begin(self) -> None:
        """Forget stacks and traces that were written before now."""
        for descriptor in (self.faults, self.children, self.trace_file):
            # A rank writes at the end of them, wherever that is. A trace is long, and in memory.
            os.ftruncate(descriptor, 0)

    def stacks(self) -> str:
        """What faulthandler wrote since :meth:`begin`."""
        return _read(self.faults)

    def stacks_of_children(self) -> str:
        """The same of processes that the rank has forked."""
        return _read(self.children)

    def mark(self) -> marker.Mark:
        """What the rank was doing last."""
        return marker.read(Path(memfile.path_of(self.page)))

    def untold(self) -> kept.Untold:
        """What the rank has kept for the end of its test."""
        return kept.read(Path(memfile.path_of(self.page)))

    def trace(self) -> str:
        """What the rank wrote for ``--ddp-trace`` since :meth:`begin`; empty without it."""
        return _read(self.trace_file)

    def has_fatal_stack(self) -> bool:
        """True if the rank has written the stack of a fatal signal since :meth:`begin`."""
        return "Fatal Python error" in self.stacks()

    def close(self) -> None:
        """Let go of them."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        # The numbers may be other files' soon.
        self.faults = self.children = self.page = self.trace_file = -1
        self.descriptors = ()


def _read(descriptor: int) -> str:
    with contextlib.suppress(OSError):
        # Nearly always there is nothing, and a look costs a tenth of reading that.
        if size := os.fstat(descriptor).st_size:
            return os.pread(descriptor, size, 0).decode(errors="replace")
    return ""
