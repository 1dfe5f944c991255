"""Descriptors in what a served process unpickles: each is an index into those that were sent.

multiprocessing gets the descriptor's representation from the object that starts a process
(``DupFd``).
"""

from __future__ import annotations

from dataclasses import dataclass

_received: list[int] = []


@dataclass(frozen=True)
class Inherited:
    """Represents a descriptor in a pickle."""

    place: int

    def detach(self) -> int:
        """The descriptor, in the process that it was sent to."""
        return _received[self.place]


def take(descriptors: list[int]) -> None:
    """Add descriptors that were sent to this process, in the order of their pickling."""
    _received.extend(descriptors)
