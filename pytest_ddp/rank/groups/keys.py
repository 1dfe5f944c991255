"""Keys of the default group's store: each test sees only its own.

Under torchrun, each test has a store of its own. A new store would need a new group, whereas a
prefix before the keys of the old one costs a few microseconds. Keys of subgroups are below it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

_GETTERS = ("_get_default_store", "_get_process_group_store")


class Keys:
    """Puts a prefix before the keys of each test, in what Python gets as the group's store."""

    def __init__(self) -> None:
        self.uses = 0
        """How often Python has requested a group's store."""
        self._group: Any = None
        self._whole: Any = None
        """The store that the group was built with."""
        self._timeout: Any = None
        self._test = 0
        for name in _GETTERS:
            self._wrap(dist.distributed_c10d, name)
        if hasattr(dist.ProcessGroup, "get_group_store"):  # an older torch has none
            self._wrap(dist.ProcessGroup, "get_group_store")

    def begin(self, group: dist.ProcessGroup | None, test: int) -> None:
        """Show only keys that were set since a test began in the store of a group.

        Args:
            group: the plugin's own default group, if it has one.
            test: number of that test, the same on all ranks.
        """
        if group is not self._group:
            self._group = group
            self._whole = None if group is None else _registry()[group][1]
            self._timeout = None if self._whole is None else self._whole.timeout
            self._test = 0
        if self._whole is not None and test != self._test:
            # set_timeout of a prefix store sets that of the whole store: undo what a test did.
            self._whole.set_timeout(self._timeout)
            backend, _ = _registry()[group]
            _registry()[group] = backend, PrefixStore(f"test {test}", self._whole)
            self._test = test

    def _wrap(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def got(*args: Any) -> Any:
            self.uses += 1
            if self._group is not None and args[:1] == (self._group,) and args[0] in _registry():
                # The group's C++ object has only the store that it was built with.
                return _registry()[self._group][1]
            return original(*args)

        setattr(owner, name, got)


def _registry() -> dict[Any, tuple[str, Store]]:
    """torch's registry: backend and store of each group."""
    registry: dict[Any, tuple[str, Store]] = dist.distributed_c10d._world.pg_map
    return registry
