"""The cache of the runs that a process has made."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

KEPT = 32
"""Runs that are kept. One subject at one world size has fewer, and subjects are checked one after
the other. More would be slow: each full garbage collection visits every record that is kept."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """A cache of the :data:`KEPT` most recently used values."""

    def __init__(self) -> None:
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """The value; None if it is not in the cache."""
        value = self._values.get(key)
        if value is not None:
            self[key] = value
        return value

    def __setitem__(self, key: Key, value: Value) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > KEPT:
            self._values.popitem(last=False)
