"""``batch_isend_irecv`` as the first collective of a group, by some of its members. No torch.

``torch.distributed.batch_isend_irecv``: "if this API is the first collective call in the ``group``
passed to ``dist.P2POp``, all ranks of the ``group`` must participate in this API call; otherwise,
the behavior is undefined." NCCL makes the group's communicator in it, for which all members have to
come. Messages outside of a batch have a communicator of their two ranks, so that they are not the
first one of a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple


class FirstOperation(NamedTuple):
    """The first collective or batch of a rank on a group."""

    group: str
    label: str
    """Of the group, for people."""
    members: tuple[int, ...]
    is_batch: bool
    name: str
    site: str


class PartialBatch(NamedTuple):
    """A group whose first collective is a batch on some members alone."""

    label: str
    first: Mapping[int, FirstOperation | None]
    """By member; None for one without a collective on the group."""


def partial_batches(ranks: Mapping[int, Sequence[FirstOperation]]) -> Iterator[PartialBatch]:
    """Find groups that some members begin with a batch, and others not.

    Args:
        ranks: the first operations of each rank, one for each group.
    """
    groups = {one.group: one for firsts in ranks.values() for one in firsts}
    for group, some in groups.items():
        first = {
            member: next((one for one in ranks.get(member, ()) if one.group == group), None)
            for member in some.members
        }
        kinds = {one is not None and one.is_batch for one in first.values()}
        if kinds == {True, False}:
            yield PartialBatch(some.label, first)
