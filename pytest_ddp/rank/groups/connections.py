"""Waits until all ranks of a group have connected, for a harness's tests that make groups.

When a rank gives up its gloo group while a peer is still connecting to others, the peer fails:
"connectFullMesh failed: connection closed by peer". A process takes long to end, a rank does not.
The marks are kept in stores of our own, since the test's own store may be gone by then.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from pytest_ddp.rank.operations.operation import name_of
from pytest_ddp.system.stdlib import os, zlib

_LIMIT = timedelta(seconds=30)
"""Seconds to wait for marks; a peer that cannot connect leaves none."""

_own: GroupConnections | None = None


class GroupConnections:
    """Marks of the groups that the current test makes."""

    def __init__(self, folder: str, test: Callable[[], int]) -> None:
        """
        Args:
            folder: the session's folder on this machine; there are no marks if it is empty.
            test: returns the number of the current test, which is the same on all of its ranks.
        """
        self._folder = folder
        self._test = test
        self.is_marking = False
        """True while a harness's test runs, which gives up its groups at its end; no wait else."""
        self._marked_test = -1
        """Number of the test that ``_made`` and ``_stores`` belong to."""
        self._made: Counter[str] = Counter()
        """How often the test made a group of each name."""
        self._stores: dict[str, FileStore] = {}
        """Store of the latest group of each name."""

    def mark(self, group: dist.ProcessGroup) -> None:
        """Mark that this rank has connected to all peers of a group."""
        # FileStore retries for minutes in a folder that a test has removed, and holds the GIL.
        if not (self.is_marking and os.path.isdir(self._folder)):
            return
        if self._marked_test != self._test():
            self._begin()
        name = name_of(group)
        self._made[name] += 1
        with contextlib.suppress(RuntimeError):
            store = self._stores[name] = FileStore(self._path(name, self._made[name]))
            store.set_timeout(_LIMIT)
            store.set(f"{group.rank()}", "")

    def _begin(self) -> None:
        """Remove the marks of the last test, which all ranks have ended."""
        self._stores.clear()  # before the files: a FileStore writes once more when it is freed
        for name, times in self._made.items():
            for number in range(1, times + 1):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path(name, number))
        self._made.clear()
        self._marked_test = self._test()

    def _path(self, name: str, number: int) -> str:
        group = f"{zlib.crc32(name.encode()):x}-{number}"
        return os.path.join(self._folder, f"connected-{self._marked_test}-{group}")

    def wait(self, groups: list[dist.ProcessGroup]) -> None:
        """Wait until all peers have connected to these groups, if this test has marked them."""
        for group in groups if self._marked_test == self._test() else ():
            if (store := self._stores.get(name_of(group))) is not None:
                with contextlib.suppress(RuntimeError):
                    store.wait([f"{rank}" for rank in range(group.size())], _LIMIT)


def begin(folder: str, test: Callable[[], int]) -> GroupConnections:
    """Make this rank's :class:`GroupConnections`, which has the arguments' meaning."""
    global _own
    _own = GroupConnections(folder, test)
    return _own


@contextlib.contextmanager
def marking() -> Iterator[None]:
    """Mark groups that are made in the block, by a test that will call :func:`wait_for_peers`."""
    if _own is None:
        yield
        return
    _own.is_marking = True
    try:
        yield
    finally:
        _own.is_marking = False


def wait_for_peers(groups: list[dist.ProcessGroup]) -> None:
    """Wait until all peers have connected to these groups.

    It does not wait until they have finished with the group: one may be waiting for its end.
    """
    if _own is not None:
        _own.wait(groups)
