"""What a process remembers of the runs that it has made."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

KEPT = 32
"""Runs; those of one subject, for one number of ranks, are fewer. Subjects are checked one after
the other, and each full collection of garbage looks at every record that is kept."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """The values that were asked for last."""

    def __init__(self) -> None:
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """The value, if it is remembered."""
        value = self._values.get(key)
        if value is not None:
            self[key] = value
        return value

    def __setitem__(self, key: Key, value: Value) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > KEPT:
            self._values.popitem(last=False)
