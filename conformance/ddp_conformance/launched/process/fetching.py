"""Which samples the loaders of an entry fetch."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ddp_conformance.launched.history import Fetched
from ddp_conformance.launched.journal import Journal
from ddp_conformance.launched.process.optimizing import Optimizing

Index = Callable[[Any], int | None]


@dataclass
class _Pass:
    loader: int
    number: int
    size: int
    indices: list[int] = field(default_factory=list)
    batch: int = 0
    complete: bool = False
    trained: bool = False
    steps: int = 0
    """Number of optimizer steps when the pass last gave out indices."""


class Fetching:
    """Follows every pass over a DataLoader with a map-style data set."""

    def __init__(self, rank: int, journal: Journal, index: Index | None) -> None:
        self._rank = rank
        self._journal = journal
        self._index: Index = operator.index if index is None else index
        self._loaders: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._made = 0
        self._passes: list[_Pass] = []
        self._latest: _Pass | None = None

    def made(self, loader: DataLoader[Any]) -> None:
        """A loader was constructed."""
        self._loaders[loader] = self._made
        self._made += 1

    def install(self, optimizing: Optimizing) -> None:
        """Look at what samplers give out. Persistent workers' iterators begin by ``_reset``."""
        iterator: Any = _BaseDataLoaderIter
        begin, following = iterator._reset, iterator._next_index

        @functools.wraps(begin)
        def _reset(self_: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            self_.watched = self._begin(loader)
            begin(self_, loader, *args, **kwargs)

        @functools.wraps(following)
        def _next_index(self_: Any) -> Any:
            return self._next(getattr(self_, "watched", None), self_, following, optimizing.steps)

        iterator._reset, iterator._next_index = _reset, _next_index
        init = iterator.__init__

        @functools.wraps(init)
        def __init__(self_: Any, loader: Any) -> None:  # noqa: N807
            self_.watched = self._begin(loader)
            init(self_, loader)

        iterator.__init__ = __init__
        self._optimizing = optimizing

    def _begin(self, loader: Any) -> _Pass | None:
        dataset = loader.dataset
        if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
            return None
        number = self._loaders.setdefault(loader, self._made)
        before = [seen for seen in self._passes if seen.loader == number and seen.indices]
        # One that was begun and gave nothing out is the same, begun twice by torch.
        self._passes = [seen for seen in self._passes if seen.indices or seen.loader != number]
        begun = _Pass(number, len(before), len(dataset))
        self._passes.append(begun)
        return begun

    def _next(self, seen: _Pass | None, iterator: Any, original: Any, steps: int) -> Any:
        self._credit(steps)
        try:
            given = original(iterator)
        except StopIteration:
            if seen is not None:
                seen.complete = True
            raise
        if seen is not None:
            items = given if isinstance(given, Iterable) and not hasattr(given, "_fields") else ()
            known = self._known(items or [given])
            seen.indices += known
            seen.batch = max(seen.batch, len(known))
            seen.steps = steps
            self._latest = seen
        return given

    def _credit(self, steps: int) -> None:
        """Steps since the last fetch were made on what it delivered."""
        if self._latest is not None and steps > self._latest.steps:
            self._latest.trained = True

    def _known(self, keys: Iterable[Any]) -> list[int]:
        found = (self._index(key) for key in keys)
        return [index for index in found if index is not None]

    def close(self) -> None:
        """Write down all passes."""
        self._credit(self._optimizing.steps)
        for seen in self._passes:
            if seen.indices:
                self._journal.add(
                    Fetched(
                        self._rank,
                        seen.loader,
                        seen.number,
                        seen.size,
                        tuple(seen.indices),
                        seen.batch,
                        seen.complete,
                        seen.trained,
                    )
                )
