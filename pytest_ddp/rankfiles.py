"""What a rank leaves in files, to be read while it lives and after its death."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from pytest_ddp.rank import marker


class RankFiles:
    """The files of one rank; they lie in the controller's private directory."""

    def __init__(self, fault_file: Path) -> None:
        self._faults = _Tail(fault_file)
        self._children = _Tail(Path(f"{fault_file}-children"))
        self._page = fault_file.with_suffix(".phase")
        self._trace = _Tail(fault_file.with_suffix(".trace"))

    def begin(self) -> None:
        """Forget stacks that were written before now."""
        self._faults.begin()
        self._children.begin()
        self._trace.begin()

    def stacks(self) -> str:
        """What faulthandler wrote since :meth:`begin`."""
        return self._faults.read()

    def stacks_of_children(self) -> str:
        """The same of processes that the rank has forked."""
        return self._children.read()

    def mark(self) -> marker.Mark:
        """What the rank was doing last."""
        return marker.read(self._page)

    def trace(self) -> str:
        """What the rank wrote for ``--ddp-trace`` since :meth:`begin`; empty without it."""
        return self._trace.read()

    def has_fatal_stack(self) -> bool:
        """True if the rank has written the stack of a fatal signal since :meth:`begin`."""
        return "Fatal Python error" in self._faults.read()

    def remove(self) -> None:
        """Delete them."""
        for path in (self._faults.path, self._children.path, self._trace.path, self._page):
            path.unlink(missing_ok=True)


class _Tail:
    """A file of which what was added since some moment counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def begin(self) -> None:
        self._offset = self._size()

    def _size(self) -> int:
        with contextlib.suppress(OSError):
            return os.stat(self.path).st_size
        return 0

    def read(self) -> str:
        # Nearly always there is nothing, and a look costs a tenth of reading that.
        if self._size() == self._offset:
            return ""
        with contextlib.suppress(OSError), self.path.open("rb") as stream:
            stream.seek(self._offset)
            return stream.read().decode(errors="replace")
        return ""
