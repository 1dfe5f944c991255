"""Strategies for legal histories, and functions that spoil one; for the judges' property tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ddp_conformance.launched.history import Ended
from hypothesis import settings
from hypothesis import strategies as st

T = TypeVar("T")

EXAMPLES = int(os.environ.get("DDP_PROPERTY_EXAMPLES", "25"))
"""The number of examples. If it is set, they differ in every run, to search; else they are the
same, as a suite must not be flaky."""

quick = settings(  # without a deadline, for the machine may be busy
    deadline=None,
    max_examples=EXAMPLES,
    derandomize="DDP_PROPERTY_EXAMPLES" not in os.environ,
    database=None,
)

world_sizes = st.integers(1, 6)
several = st.integers(2, 6)
"""World sizes at which ranks can differ."""

words = st.text(st.sampled_from("abz ./_-éß漢🜁"), min_size=1, max_size=6)
"""Names of files, parameters, keys: what the judges only pass on."""

digests = st.text("0123456789abcdef", min_size=12, max_size=12)

floats = st.floats(-1e6, 1e6) | st.sampled_from([float("nan"), float("inf"), -float("inf"), -0.0])


def ends(world_size: int) -> list[Ended]:
    """All ranks came to their end, the last one first."""
    return [Ended(rank, world_size - 1 - rank, 0, True) for rank in range(world_size)]


def dealt(draw: st.DrawFn, items: Sequence[int], world_size: int) -> list[list[int]]:
    """The items in any order, each to any rank."""
    order = draw(st.permutations(items))
    ranks = st.integers(0, world_size - 1)
    owners = draw(st.lists(ranks, min_size=len(order), max_size=len(order)))
    pairs = list(zip(order, owners, strict=True))
    return [[item for item, owner in pairs if owner == rank] for rank in range(world_size)]


def others(strategy: st.SearchStrategy[T], *known: object) -> st.SearchStrategy[T]:
    """A value that is none of the known ones."""
    return strategy.filter(lambda drawn: drawn not in known)


def any_record(
    data: st.DataObject,
    history: Sequence[Any],
    kind: type[T],
    where: Callable[[T], bool] = lambda record: True,
) -> T:
    """One record of a kind, to be spoiled."""
    return data.draw(st.sampled_from([r for r in history if isinstance(r, kind) and where(r)]))


def without(history: Sequence[Any], *lost: object) -> list[Any]:
    """The history with these very records lost."""
    return [record for record in history if not any(record is one for one in lost)]


def changed(history: Sequence[Any], record: Any, **changes: object) -> list[Any]:
    """The history with this very record changed."""
    return [replace(one, **changes) if one is record else one for one in history]


def texts(found: Sequence[object]) -> list[str]:
    """The texts of the violations."""
    return [str(violation) for violation in found]
