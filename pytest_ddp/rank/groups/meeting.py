"""Whether all ranks of a group have connected, where a harness's tests make groups of their own.

A rank that gives up its gloo group while a peer still connects to others breaks the peer's:
"connectFullMesh failed: connection closed by peer". Processes take long to end; ranks do not.
Marks are in stores of our own, since what the test has given to torch may be gone by then.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from pytest_ddp.rank.groups.backends import name_of
from pytest_ddp.system.own import os, zlib

_LIMIT = timedelta(seconds=30)
"""A peer that cannot connect leaves no mark."""

_own: Meeting | None = None


class Meeting:
    """Marks of the groups that the running test makes."""

    def __init__(self, folder: str, test: Callable[[], int]) -> None:
        """
        Args:
            folder: of the session, on this machine; in an empty one there are no marks.
            test: tells the number of the test that runs, the same one on all of its ranks.
        """
        self._folder = folder
        self._test = test
        self.is_marking = False
        """A harness's test runs, which gives up its groups when it ends: others wait for nobody."""
        self._of = -1
        self._made: Counter[str] = Counter()
        """How often a group of each name was made in the test."""
        self._stores: dict[str, FileStore] = {}
        """By name of the group that was made last."""

    def mark(self, group: dist.ProcessGroup) -> None:
        """Say that this rank has connected; called once it has."""
        # A store in a folder that a test has removed would look for it for minutes, with the GIL.
        if not (self.is_marking and os.path.isdir(self._folder)):
            return
        if self._of != self._test():
            self._begin()
        name = name_of(group)
        self._made[name] += 1
        with contextlib.suppress(RuntimeError):
            store = self._stores[name] = FileStore(self._path(name, self._made[name]))
            store.set_timeout(_LIMIT)
            store.set(f"{group.rank()}", "")

    def _begin(self) -> None:
        """Forget the marks of a test that all ranks have ended."""
        self._stores.clear()  # which write once more when they are freed
        for name, times in self._made.items():
            for number in range(1, times + 1):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path(name, number))
        self._made.clear()
        self._of = self._test()

    def _path(self, name: str, number: int) -> str:
        group = f"{zlib.crc32(name.encode()):x}-{number}"
        return os.path.join(self._folder, f"connected-{self._of}-{group}")

    def wait(self, groups: list[dist.ProcessGroup]) -> None:
        """See :func:`wait_for_peers`."""
        for group in groups if self._of == self._test() else ():
            if (store := self._stores.get(name_of(group))) is not None:
                with contextlib.suppress(RuntimeError):
                    store.wait([f"{rank}" for rank in range(group.size())], _LIMIT)


def begin(folder: str, test: Callable[[], int]) -> Meeting:
    """Be the one of this rank; for the arguments see :class:`Meeting`."""
    global _own
    _own = Meeting(folder, test)
    return _own


@contextlib.contextmanager
def marking() -> Iterator[None]:
    """Mark the groups that are made in the block, by a test that is to call wait_for_peers."""
    if _own is None:
        yield
        return
    _own.is_marking = True
    try:
        yield
    finally:
        _own.is_marking = False


def wait_for_peers(groups: list[dist.ProcessGroup]) -> None:
    """Wait until all peers have connected, though not until they are done with the group.

    One of them may wait for its end.
    """
    if _own is not None:
        _own.wait(groups)
