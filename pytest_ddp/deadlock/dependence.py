"""The members of a group that a rank's wait in a collective depends on. Pure.

Which rule an operation follows is in :mod:`pytest_ddp.rank.operations.table`.

The table is that of gloo, the only backend on which hangs are proved. gloo keeps no copy of what
it sends: a send ends when its receiver has begun to receive, whatever the size. A member belongs
in a row only if the wait cannot end before that member has begun the collective: a row that lacks
one leaves a hang to the deadline, and a row with one too many accuses a legal program. A test
measures the rows on gloo, for each operation, root and rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from pytest_ddp.protocol.rank_status import PendingOperation
from pytest_ddp.rank.operations.table import NeedRule, recorded_as


class Place(NamedTuple):
    """A rank's place in a collective; ranks are numbered in the order of the group."""

    rank: int
    size: int
    root: int | None
    """The root of the collective; None if it is unknown, or if there is none."""
    numel: int | None
    """Elements of all tensors of the collective; None if unknown."""


class NeedRow(NamedTuple):
    """Whom a rank depends on in some operations, by the flight recorder's names."""

    operations: tuple[str, ...]
    who: str
    """The ranks that wait."""
    needs: str
    reason: str
    applies: Callable[[Place], bool]
    members: Callable[[Place], Iterable[int]]


class Dependence(NamedTuple):
    """The members that a wait depends on."""

    ranks: tuple[int, ...]
    """Global ranks."""
    on_each: bool
    """True if the wait cannot end without each of them; False if it is not known without which."""


def _others(place: Place) -> Iterable[int]:
    return (rank for rank in range(place.size) if rank != place.rank)


def _root(place: Place) -> Iterable[int]:
    assert place.root is not None
    return (place.root,)


def _nobody(place: Place) -> Iterable[int]:
    return ()


def _tree(place: Place) -> Iterable[int]:
    """The ranks on the way from the root in a binomial tree, and those to which it passes on."""
    assert place.root is not None
    own = (place.rank - place.root) % place.size
    bits = [1 << i for i in range(place.size.bit_length())]
    above = {own % bit for bit in bits if bit <= own}
    below = {own + bit for bit in bits if own < bit < place.size - own}
    return ((place.root + rank) % place.size for rank in above | below)


def _ring(place: Place) -> Iterable[int]:
    """The ranks from which sums reach this one in a ring, and the one to which it passes them.

    Rank ``r`` ends with the sum of part ``r``, which starts at rank ``r - 1`` and passes all ranks
    downwards. Tensors with few elements have empty parts at their end, which are not sent.
    """
    assert place.numel is not None
    rank, size, parts = place.rank, place.size, _parts(place.numel, place.size)
    if rank < parts:
        return _others(place)
    return {rank - 1, *range(rank + 1, size), *range(parts - 1)}


_SMALL = 1 << 17
"""Elements for each rank up to which gloo cuts tensors of all dtypes into two segments a part: its
segments have 1 MiB at most, and an element has 16 bytes at most."""


def _parts(numel: int, size: int) -> int:
    """The number of parts with elements into which a reduction cuts a tensor, at least."""
    if numel > _SMALL * size:
        return -(-(2 * size + 1) // 3)  # of three segments, two for each rank and one more
    part = 2 * -(-numel // (2 * size))
    return -(-numel // part)


def _is_root(place: Place) -> bool:
    return place.rank == place.root


def _is_empty(place: Place) -> bool:
    return place.numel == 0


def _always(place: Place) -> bool:
    return True


def _knows_root(place: Place) -> bool:
    return place.root is not None


def _knows_size(place: Place) -> bool:
    return place.numel is not None


TABLE = (
    NeedRow(
        recorded_as(NeedRule.ALL),
        "every rank",
        "every other member",
        "that is what a barrier is",
        _always,
        _others,
    ),
    NeedRow(
        recorded_as(NeedRule.ALL_WITH_DATA, NeedRule.REDUCE),
        "a rank with tensors of no elements",
        "nobody",
        "gloo returns before it sends",
        _is_empty,
        _nobody,
    ),
    NeedRow(
        recorded_as(NeedRule.ALL_WITH_DATA),
        "every other rank",
        "every other member",
        "the result is made of the data of all",
        _always,
        _others,
    ),
    NeedRow(
        recorded_as(NeedRule.ALL_WITHOUT_DATA),
        "every rank",
        "every other member",
        "each two exchange a message, also where its split is 0",
        _always,
        _others,
    ),
    NeedRow(
        recorded_as(NeedRule.BROADCAST),
        "the root",
        "the members 1, 2, 4, ... places after it",
        "it sends to these, and a send ends when it is received",
        _is_root,
        _tree,
    ),
    NeedRow(
        recorded_as(NeedRule.BROADCAST),
        "a receiver",
        "the root, and its neighbours in the tree: those on the way to it, those behind it",
        "the data goes along a binomial tree; up to three members, straight from the root",
        _knows_root,
        _tree,
    ),
    NeedRow(
        recorded_as(NeedRule.SCATTER),
        "the root",
        "every other member",
        "it sends to each, and a send ends when it is received",
        _is_root,
        _others,
    ),
    NeedRow(
        recorded_as(NeedRule.SCATTER),
        "a receiver",
        "the root",
        "it receives from the root alone",
        _knows_root,
        _root,
    ),
    NeedRow(
        recorded_as(NeedRule.GATHER),
        "the root",
        "every other member",
        "it receives from each",
        _is_root,
        _others,
    ),
    NeedRow(
        recorded_as(NeedRule.GATHER),
        "a sender",
        "the root",
        "its send ends when the root receives it",
        _knows_root,
        _root,
    ),
    NeedRow(
        recorded_as(NeedRule.REDUCE),
        "the root",
        "every other member",
        "the result is made of the data of all",
        _is_root,
        _others,
    ),
    NeedRow(
        recorded_as(NeedRule.REDUCE),
        "every other rank",
        "every other member; with few elements, those from which sums reach it, and the next one",
        "parts of the tensor go along a ring, and are summed up on all ranks",
        _knows_size,
        _ring,
    ),
)
"""The first row that applies counts."""


def dependence(wait: PendingOperation, rank: int) -> Dependence:
    """The members that a rank's wait depends on."""
    if wait.peer is not None:
        return Dependence((wait.peer,), on_each=True)
    members = wait.members
    others = tuple(member for member in members if member != rank)
    if wait.recorded_as is None or (len(others) < 2 and wait.numel != 0):
        return Dependence(others, on_each=True)
    root = None if wait.root is None else members.index(wait.root)
    place = Place(members.index(rank), len(members), root, wait.numel)
    for row in TABLE:
        if wait.recorded_as in row.operations and row.applies(place):
            return Dependence(tuple(members[each] for each in row.members(place)), on_each=True)
    return Dependence(others, on_each=False)
