"""Messages, and batches of them, that go together on gloo and not on NCCL. Imports no torch.

gloo pairs messages by tag and runs those of ``isend`` and ``irecv`` in any order. NCCL has no tags,
and outside of ``batch_isend_irecv`` it runs the messages of two ranks one after the other, where
each waits for its other end. Without a ``device_id`` in ``init_process_group`` the first message of
a pair makes a communicator besides, for which both ranks have to come; with one all messages of a
group are in one order, which is stricter.

``torch.distributed.batch_isend_irecv``: "if this API is the first collective call in the ``group``
passed to ``dist.P2POp``, all ranks of the ``group`` must participate in this API call; otherwise,
the behavior is undefined." NCCL makes the group's communicator in it, for which all members have to
come. Messages outside of a batch have a communicator of their two ranks, so that they are not the
first one of a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pytest_ddp.extensions.portable.differences import ROWS, finding_of
from pytest_ddp.extensions.portable.finding import PortabilityFinding
from pytest_ddp.extensions.portable.issued import History, Issue, Step
from pytest_ddp.extensions.portable.orders import waiting_ring
from pytest_ddp.outcome.outcome import ranks_text


class Mismatch(NamedTuple):
    """Messages that do not go together on NCCL."""

    row: str
    """Name of the row in the table of differences."""
    messages: tuple[Issue, ...]
    """One message of each rank."""


def message_findings(histories: Mapping[int, History]) -> Iterator[PortabilityFinding]:
    """What is found by the messages of all ranks; none of a rank that has noted too much."""
    whole = {rank: history for rank, history in histories.items() if history.is_whole}
    found: dict[tuple[str, ...], Mismatch] = {}
    for one in mismatches(whole):
        found.setdefault((one.row, *(message.site for message in one.messages)), one)
    for one in found.values():
        lines = ((f"rank {m.rank}: {m.name}, {m.nbytes} bytes", m.site) for m in one.messages)
        yield finding_of(ROWS[one.row], tuple(lines))
    if len(whole) == len(histories):
        yield from partial_batches(histories)


# ------------------------------------------------------------------ both ends of a message


def mismatches(histories: Mapping[int, History]) -> Iterator[Mismatch]:
    """Find messages that have no order, or the wrong one, on NCCL, or too much room.

    A pair of ranks with messages from several threads, from any source, or with an end that is
    missing has no order to compare.
    """
    ranks = {
        rank: [issue for issue in history.issues if issue.key.is_message]
        for rank, history in histories.items()
    }
    for group in sorted({message.key.group for messages in ranks.values() for message in messages}):
        own = {
            rank: [message for message in messages if message.key.group == group]
            for rank, messages in ranks.items()
        }
        pairs = {(rank, m.peer) for rank, messages in own.items() for m in messages}
        safe: set[tuple[int, int]] = set()
        for one, other in sorted(pair for pair in pairs if pair[0] < pair[1]):
            for is_batched in (False, True):
                mine, theirs = (
                    [m for m in own.get(end, ()) if m.peer == peer and m.is_batched == is_batched]
                    for end, peer in ((one, other), (other, one))
                )
                if not _is_comparable(own, one, other) or not _is_complete(mine, theirs):
                    continue
                found = _wrong_pair(mine, theirs)
                if found is None and not is_batched:
                    found = _head_to_head(mine, theirs)
                if found is not None:
                    yield found
                elif not is_batched and mine:
                    safe |= {(one, other), (other, one)}
        # A pair that does not go together would be named again by the ring.
        if ring := waiting_ring({rank: _firsts(own[rank], safe) for rank in own}):
            yield Mismatch("ring", tuple(one.waits for one in ring))


def _firsts(messages: Sequence[Issue], pairs: set[tuple[int, int]]) -> Iterator[Step]:
    """The first message to each peer that is in no batch, each with the wait for it."""
    seen = set()
    for message in messages:
        pair = message.rank, message.peer
        if not message.is_batched and pair in pairs and pair not in seen:
            seen.add(pair)
            first = message._replace(number=1)  # of those in no batch
            yield from (Step(message.thread, first, is_wait) for is_wait in (False, True))


def _is_comparable(own: Mapping[int, Sequence[Issue]], one: int, other: int) -> bool:
    ends = own.get(one, ()), own.get(other, ())
    return all(
        all(message.is_matched for message in end) and len({message.thread for message in end}) == 1
        for end in ends
    )


def _is_complete(mine: Sequence[Issue], theirs: Sequence[Issue]) -> bool:
    """Whether each send has a receive."""
    sent = [sum(message.is_send for message in end) for end in (mine, theirs)]
    return sent == [len(theirs) - sent[1], len(mine) - sent[0]]


def _wrong_pair(mine: Sequence[Issue], theirs: Sequence[Issue]) -> Mismatch | None:
    """The first message that is received in another order than sent, else into more room."""
    pairs = [
        (send, receive)
        for source, target in ((mine, theirs), (theirs, mine))
        for send, receive in zip(
            [message for message in source if message.is_send],
            [message for message in target if not message.is_send],
            strict=True,
        )
    ]
    by_tag = [pair for pair in pairs if pair[0].key.tag != pair[1].key.tag]
    with_room = [pair for pair in pairs if pair[0].nbytes < pair[1].nbytes]
    found = (("tags", by_tag), ("room", with_room))
    return next((Mismatch(row, wrong[0]) for row, wrong in found if wrong), None)


def _head_to_head(mine: Sequence[Issue], theirs: Sequence[Issue]) -> Mismatch | None:
    """The first message of both that goes in the same direction as seen from its rank."""
    for pair in zip(mine, theirs, strict=True):
        if pair[0].is_send == pair[1].is_send:
            return Mismatch("head to head", pair)
    return None


# ------------------------------------------------------------------ the first batch of a group


def partial_batches(histories: Mapping[int, History]) -> Iterator[PortabilityFinding]:
    """Find groups whose first collective is a batch on some members, and not on others."""
    first: dict[str, dict[int, Issue]] = {}
    used = {group for history in histories.values() for group in history.used}
    for rank, history in histories.items():
        for issue in history.issues:
            if issue.key.group not in used and (issue.is_batched or not issue.key.is_message):
                first.setdefault(issue.key.group, {}).setdefault(rank, issue)
    for by_rank in first.values():
        some = next(iter(by_rank.values()))
        if {rank in by_rank and by_rank[rank].is_batched for rank in some.members} == {True, False}:
            ends: dict[tuple[str, str], list[int]] = {}
            for rank in some.members:
                ends.setdefault(_begin(by_rank.get(rank), some.label), []).append(rank)
            lines = ((f"{ranks_text(of)}: {words}", site) for (words, site), of in ends.items())
            yield finding_of(ROWS["first batch"], tuple(lines))


def _begin(first: Issue | None, label: str) -> tuple[str, str]:
    """What a rank begins a group with, and where."""
    if first is None:
        return f"nothing on {label}", ""
    name = f"batch_isend_irecv on {label}" if first.is_batched else first.name
    return f"first {name}", first.site
