"""Keys of the default group's store: those of one test are not there for the next.

Under torchrun each test has a store of its own. A new store would mean a new group; a prefix of
the old one costs a few microseconds. Subgroups have their keys below it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

_GETTERS = ("_get_default_store", "_get_process_group_store")


class Keys:
    """Puts a prefix before the keys of each test."""

    def __init__(self) -> None:
        self.uses = 0
        """How often Python has asked torch for a group's store."""
        self._group: Any = None
        self._whole: Any = None
        """The store that the group was built by."""
        self._timeout: Any = None
        self._test = 0
        for name in _GETTERS:
            self._wrap(dist.distributed_c10d, name)
        if hasattr(dist.ProcessGroup, "get_group_store"):  # an older torch has none
            self._wrap(dist.ProcessGroup, "get_group_store")

    def begin(self, group: dist.ProcessGroup | None, test: int) -> None:
        """Have the store of a group hold the keys that were set since a test began, and no others.

        Args:
            group: the plugin's own default group, if there is one.
            test: number of that test, the same on all ranks.
        """
        if group is not self._group:
            self._group = group
            self._whole = None if group is None else _books()[group][1]
            self._timeout = None if self._whole is None else self._whole.timeout
            self._test = 0
        if self._whole is not None and test != self._test:
            # A test's own timeout reaches through all prefixes.
            self._whole.set_timeout(self._timeout)
            backend, _ = _books()[group]
            _books()[group] = backend, PrefixStore(f"test {test}", self._whole)
            self._test = test

    def _wrap(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def got(*args: Any) -> Any:
            self.uses += 1
            if self._group is not None and args[:1] == (self._group,) and args[0] in _books():
                # A group in C++ keeps the store that it was built by.
                return _books()[self._group][1]
            return original(*args)

        setattr(owner, name, got)


def _books() -> dict[Any, tuple[str, Store]]:
    """Backend and store of each group, as torch keeps them."""
    books: dict[Any, tuple[str, Store]] = dist.distributed_c10d._world.pg_map
    return books
