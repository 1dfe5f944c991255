"""What the messages of a test are made of, in the order in which the rank began them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from pytest_ddp.rank.operations.operation import Operation
from pytest_ddp.system.stdlib import threading


class Shape(NamedTuple):
    """What messages of one line, one thread and one size have in common."""

    call: Operation
    """The first one."""
    thread: int


class MessageHistory:
    """A number for each message, as a loop sends a million of one shape."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}
        self._shapes: list[Shape] = []
        self._order = array("I")

    def clear(self) -> None:
        self._numbers.clear()
        self._shapes.clear()
        del self._order[:]

    def begin(self, call: Operation) -> None:
        self._order.append(self._number(call))

    def refuse(self, call: Operation) -> None:
        """Take back a message that torch has refused: the last one of its shape."""
        self._order.reverse()
        self._order.remove(self._number(call))
        self._order.reverse()

    def forget(self, group: str) -> None:
        """Drop the messages of a group, as another one gets its name."""
        self._order = array("I", (n for n in self._order if self._shapes[n].call.group != group))

    def shapes(self, group: str) -> Iterator[tuple[int, Shape]]:
        """The shapes of the messages of a group, with their numbers."""
        used = {*self._order}
        for number, shape in enumerate([*self._shapes]):
            if number in used and shape.call.group == group:
                yield number, shape

    def order(self) -> array[int]:
        """The number of each message's shape, for all groups."""
        return self._order[:]

    def _number(self, call: Operation) -> int:
        assert call.site is not None
        shape = Shape(call, threading.get_ident())
        ends, site = (call.name, call.group, call.root, call.tag), call.site
        # By the code's id: its hash is computed anew at each look-up. The shape keeps it alive.
        key = (*ends, call.sends, call.receives, id(site.code), site.line, shape.thread)
        number = self._numbers.setdefault(key, len(self._shapes))
        if number == len(self._shapes):
            self._shapes.append(shape)
        return number
