"""Messages of two ranks that NCCL runs in another order than gloo, or with less room.

gloo pairs messages by tag and runs those of ``isend`` and ``irecv`` in any order. NCCL has no tags,
and outside of ``batch_isend_irecv`` it runs the messages of two ranks one after the other, where
each waits for its other end. Without a ``device_id`` in ``init_process_group`` the first message of
a pair makes a communicator besides, for which both ranks have to come; with one all messages of a
group are in one order, which is stricter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias


class Message(NamedTuple):
    """A send or a receive of one rank, in the order of issue."""

    group: str
    peer: int
    """Global rank of the other end; -1 for a receive from any."""
    is_send: bool
    tag: int
    is_batched: bool
    """Whether ``batch_isend_irecv`` issued it."""
    thread: int
    site: str
    name: str = ""
    """For people, with its peer and group."""
    nbytes: int = 0
    """What is sent, or the room for it."""


class Mismatch(NamedTuple):
    """Messages that do not go together on NCCL."""

    row: str
    """Name of the row in the table of differences."""
    ranks: tuple[int, ...]
    messages: tuple[Message, ...]
    """One of each rank."""


Ranks: TypeAlias = Mapping[int, Sequence[Message]]
"""Messages by global rank."""


def mismatches(ranks: Ranks) -> Iterator[Mismatch]:
    """Find messages that have no order, or the wrong one, on NCCL, or too much room.

    A pair of ranks with messages from several threads, from any source, or with an end that is
    missing has no order to compare.
    """
    for group in sorted({message.group for messages in ranks.values() for message in messages}):
        own = {
            rank: [message for message in messages if message.group == group]
            for rank, messages in ranks.items()
        }
        pairs = {
            (rank, message.peer)
            for rank, messages in own.items()
            for message in messages
            if rank < message.peer
        }
        safe: set[tuple[int, int]] = set()
        for one, other in sorted(pairs):
            for is_batched in (False, True):
                mine, theirs = (
                    [m for m in own.get(end, ()) if m.peer == peer and m.is_batched == is_batched]
                    for end, peer in ((one, other), (other, one))
                )
                if not _is_comparable(own, one, other) or not _is_complete(mine, theirs):
                    continue
                found = _by_tag(one, other, mine, theirs) or _with_room(one, other, mine, theirs)
                if found is None and not is_batched:
                    found = _head_to_head(one, other, mine, theirs)
                if found is not None:
                    yield found
                elif not is_batched and mine:
                    safe |= {(one, other), (other, one)}
        # A pair that does not go together would be named again by the ring.
        found = _ring({rank: list(_firsts(rank, own[rank], safe)) for rank in own})
        if found is not None:
            yield found


def _firsts(
    rank: int, messages: Sequence[Message], pairs: set[tuple[int, int]]
) -> Iterator[Message]:
    """The first message to each peer that is in no batch."""
    seen = set()
    for message in messages:
        if not message.is_batched and message.peer not in seen and (rank, message.peer) in pairs:
            seen.add(message.peer)
            yield message


def _is_comparable(own: Ranks, one: int, other: int) -> bool:
    messages = [*own.get(one, ()), *own.get(other, ())]
    if any(message.peer == -1 for message in messages):
        return False
    return all(len({m.thread for m in own.get(rank, ())}) == 1 for rank in (one, other))


def _is_complete(mine: Sequence[Message], theirs: Sequence[Message]) -> bool:
    """Whether each send has a receive."""
    sent = [sum(message.is_send for message in end) for end in (mine, theirs)]
    return sent == [len(theirs) - sent[1], len(mine) - sent[0]]


def _by_tag(
    one: int, other: int, mine: Sequence[Message], theirs: Sequence[Message]
) -> Mismatch | None:
    """The first message that is received in another order than sent."""
    for send, receive, ranks in _pairs(one, other, mine, theirs):
        if send.tag != receive.tag:
            return Mismatch("tags", ranks, (send, receive))
    return None


def _with_room(
    one: int, other: int, mine: Sequence[Message], theirs: Sequence[Message]
) -> Mismatch | None:
    """The first message that is received into more than was sent."""
    for send, receive, ranks in _pairs(one, other, mine, theirs):
        if send.nbytes < receive.nbytes:
            return Mismatch("room", ranks, (send, receive))
    return None


def _pairs(
    one: int, other: int, mine: Sequence[Message], theirs: Sequence[Message]
) -> Iterator[tuple[Message, Message, tuple[int, int]]]:
    """Each send with its receive and the ranks of both, in NCCL's order."""
    for source, target, ranks in ((mine, theirs, (one, other)), (theirs, mine, (other, one))):
        sends = [message for message in source if message.is_send]
        receives = [message for message in target if not message.is_send]
        for send, receive in zip(sends, receives, strict=True):
            yield send, receive, ranks


def _head_to_head(
    one: int, other: int, mine: Sequence[Message], theirs: Sequence[Message]
) -> Mismatch | None:
    """The first message of both that goes in the same direction as seen from its rank."""
    for first, second in zip(mine, theirs, strict=True):
        if first.is_send == second.is_send:
            return Mismatch("head to head", (one, other), (first, second))
    return None


def _ring(order: Mapping[int, Sequence[Message]]) -> Mismatch | None:
    """Ranks that wait for each other with the first message of each pair."""
    left = {rank: list(messages) for rank, messages in order.items() if messages}
    while True:
        ready = next(
            (
                rank
                for rank, messages in left.items()
                if messages and left[messages[0].peer][0].peer == rank
            ),
            None,
        )
        if ready is None:
            break
        for rank in (left[ready][0].peer, ready):
            del left[rank][0]
    stuck = [rank for rank, messages in left.items() if messages]
    if not stuck:
        return None
    ring, rank = [], stuck[0]
    while rank not in ring:
        ring.append(rank)
        rank = left[rank][0].peer
    ring = ring[ring.index(rank) :]
    return Mismatch("ring", tuple(ring), tuple(left[one][0] for one in ring))
