"""Compare both ends of each message of an ended test: they must have the same dtype. Pure.

gloo looks at bytes alone: it puts four float32 into the room of four int32, or of eight float16.
More room than was sent is legal there, and so is another shape.

The n-th send of a rank to another one with a tag meets the n-th receive for it. Where that order is
not known, because a receive takes messages of any rank or several threads begin messages, dtypes
are counted: if more messages of one dtype are received than sent, some are taken for another one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from pytest_ddp.deadlock.collectives import source_of, whole_groups
from pytest_ddp.outcome.outcome import MessageRoute
from pytest_ddp.outcome.stack_dumps import short_line
from pytest_ddp.protocol.rank_status import GroupCount, MessageShape, Traffic

_ANY = -1


class _End(NamedTuple):
    """A send or a receive."""

    rank: int
    shape: MessageShape


class _Mailbox(NamedTuple):
    """The group, the receiver and the tag of messages, by which a receive finds them."""

    group: str
    receiver: int
    tag: int


class _Arrivals(NamedTuple):
    """The messages for a mailbox, each in the order in which its rank began them."""

    sends: dict[int, list[_End]]
    """Sends that have arrived, by sender."""
    receives: dict[int, list[_End]]
    """Receives that have arrived, by the sender that is named, -1 for any."""


Mailboxes: TypeAlias = dict[_Mailbox, _Arrivals]


def difference(
    counts: Mapping[int, tuple[GroupCount, ...]],
    traffic: Mapping[int, Traffic],
    before: Mapping[MessageRoute, int],
) -> str:
    """A message of which both ends differ in dtype, side by side; empty if there is none.

    Args:
        counts: the groups of every rank of the test.
        traffic: sends and receives that ranks began in the test.
        before: those that fixtures had open when it began, of which the dtype is not known.
    """
    if any(each.unclear for each in traffic.values()):
        return ""
    if len({shape.dtype for each in traffic.values() for shape in each.shapes}) < 2:
        return ""
    members = dict(whole_groups(counts))
    words = {(each.name, each.members): each.words for mine in counts.values() for each in mine}
    unknown = {_Mailbox(way.group, way.receiver, way.tag) for way in before}
    for mailbox, arrivals in _mailboxes(traffic).items():
        if mailbox.group not in members or mailbox in unknown or _is_lost(mailbox, traffic):
            continue
        group = words[mailbox.group, members[mailbox.group]]
        for found in _unlike(mailbox, arrivals):
            return f"{found.title(mailbox)} of {group}:\n{found.sides()}"
    return ""


class _Unlike(NamedTuple):
    send: _End
    receive: _End
    number: int
    """The number of the message between the two, from 1; 0 where the order is not known."""

    def title(self, mailbox: _Mailbox) -> str:
        which = f"message #{self.number} from rank {self.send.rank}" if self.number else "a message"
        tag = f" (tag {mailbox.tag})" if mailbox.tag else ""
        return f"the ranks differ in {which} to rank {mailbox.receiver}{tag}"

    def sides(self) -> str:
        return "\n".join(
            f"  rank {end.rank}: {verb}({end.shape.elements} x {end.shape.dtype})\n"
            f"    at {short_line(end.shape.site)}: {source_of(end.shape.site)}"
            for verb, end in (("send", self.send), ("recv", self.receive))
        )


def _mailboxes(traffic: Mapping[int, Traffic]) -> Mailboxes:
    found: Mailboxes = defaultdict(lambda: _Arrivals(defaultdict(list), defaultdict(list)))
    for rank, begun in sorted(traffic.items()):
        ends = [_End(rank, shape) for shape in begun.shapes]
        for place in begun.order:
            end, shape = ends[place], begun.shapes[place]
            if shape.is_send:
                found[_Mailbox(shape.group, shape.peer, shape.tag)].sends[rank].append(end)
            else:
                found[_Mailbox(shape.group, rank, shape.tag)].receives[shape.peer].append(end)
    return found


def _is_lost(mailbox: _Mailbox, traffic: Mapping[int, Traffic]) -> bool:
    """Whether a receive was given up: which message it would have taken is not known."""
    mine = traffic.get(mailbox.receiver)
    return mine is not None and any(not one.is_send for one in mine.dropped)


def _unlike(mailbox: _Mailbox, arrivals: _Arrivals) -> Iterator[_Unlike]:
    sends, receives = arrivals
    ends = [end for each in (*sends.values(), *receives.values()) for end in each]
    threads = {(end.rank, end.shape.thread) for end in ends}
    if _ANY not in receives and len(threads) == len({rank for rank, _ in threads}):
        for sender in sorted(sends):
            pairs = zip(sends[sender], receives.get(sender, ()), strict=False)
            for number, (send, receive) in enumerate(pairs, 1):
                if send.shape.dtype != receive.shape.dtype and send.shape.elements:
                    yield _Unlike(send, receive, number)
        return
    sent = [end for each in sends.values() for end in each]
    taken = [end for each in receives.values() for end in each]
    if len(sent) == len(taken) and all(end.shape.elements for end in sent):
        number_sent, number_taken = (
            Counter(end.shape.dtype for end in each) for each in (sent, taken)
        )
        more, fewer = number_sent - number_taken, number_taken - number_sent
        if more:
            yield _Unlike(
                next(end for end in sent if end.shape.dtype in more),
                next(end for end in taken if end.shape.dtype in fewer),
                0,
            )
