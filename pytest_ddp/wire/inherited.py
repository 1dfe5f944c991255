"""Descriptors in what a served process unpickles: each is told by its place among those it gets.

multiprocessing asks the object that starts a process how to do so (``DupFd``).
"""

from __future__ import annotations

from dataclasses import dataclass

_received: list[int] = []


@dataclass(frozen=True)
class Inherited:
    """Stands for a descriptor while it is pickled."""

    place: int

    def detach(self) -> int:
        """The descriptor, in the process that it was sent to."""
        return _received[self.place]


def take(descriptors: list[int]) -> None:
    """Take what came for this process; in the order in which they were asked for."""
    _received.extend(descriptors)
