"""The parameters and buffers that each rank has: experts and stages of a pipeline are on
some.
"""

from __future__ import annotations

from collections import defaultdict

from ddp_conformance.framework.history import History
from ddp_conformance.model.history import Buffers, State, Statistics, Tied, Wrapped


class Owners:
    """The ranks that have each parameter and buffer, by all that their records show.

    What a rank has once it must have always; what it never has is another one's alone.
    """

    def __init__(self, history: History) -> None:
        self._first = {
            name: seen.names[0] for seen in history if isinstance(seen, Tied) for name in seen.names
        }
        self._names: defaultdict[int, set[str]] = defaultdict(set)
        self._trained: dict[int, tuple[str, ...]] = {}
        for seen in history:
            if isinstance(seen, State):
                self._names[seen.rank].update(dict((*seen.parameters, *seen.buffers)))
            elif isinstance(seen, Buffers):
                self._names[seen.rank].update(dict(seen.contents))
            elif isinstance(seen, Statistics) and not seen.alone:
                self._names[seen.rank].update(dict(seen.values))
            elif isinstance(seen, Wrapped):
                self._names[seen.rank].update(seen.names)
                self._trained[seen.rank] = seen.names

    def one_name(self, name: str) -> str:
        """The first name that one process has for a parameter that is tied there."""
        return self._first.get(name, name)

    def have(self, rank: int, name: str) -> bool:
        """Whether this rank has the parameter or buffer at any time."""
        return name in self._names[rank]

    def train_elsewhere(self, rank: int, name: str) -> bool:
        """Whether this rank is known not to train the parameter, and another one to train it."""
        return (
            rank in self._trained
            and not self._trains(rank, name)
            and (
                any(self._trains(other, name) for other in self._trained)
                or (
                    not self._has(rank, name)
                    and any(self._has(other, name) for other in self._trained)
                )
            )
        )

    def train_nothing(self, rank: int) -> bool:
        """Whether this rank is known to have no parameter to train."""
        return self._trained.get(rank) == ()

    def _has(self, rank: int, name: str) -> bool:
        """Whether it has it, maybe frozen."""
        return any(self.one_name(own) == name for own in self._names[rank])

    def _trains(self, rank: int, name: str) -> bool:
        return any(self.one_name(own) == name for own in self._trained[rank])
