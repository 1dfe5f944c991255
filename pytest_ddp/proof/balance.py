"""Match each send of a test with its receive. Pure.

A send or receive without its counterpart reaches the next test on these ranks: that test's receive
takes the old message, or its send goes to the old receive. One rank alone cannot find out: a send
may be complete before it is received.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pytest_ddp.evidence.outcome import Unfinished, Way
from pytest_ddp.wire.survey import GroupCount, Messages, Traffic

_ANY = -1


class Balance(NamedTuple):
    """Sends and receives of a test without their counterpart."""

    unfinished: tuple[Unfinished, ...]
    open: dict[Way, int]
    """Those that fixtures began which are still up: sends without a receive; below zero, receives
    without a send."""


NOTHING = Balance((), {})


def balance(
    counts: Mapping[int, tuple[GroupCount, ...]],
    traffic: Mapping[int, Traffic],
    before: Mapping[Way, int],
    *,
    keeps: bool,
) -> Balance:
    """Match sends with receives.

    Args:
        counts: the groups of every rank of the test.
        traffic: sends and receives that ranks began in the test.
        before: those that were open when it began.
        keeps: whether a fixture is still up that may have begun some.
    """
    if any(each.unclear for each in traffic.values()):
        return NOTHING
    whole = set(_whole(counts))
    total = Counter({way: n for way, n in before.items() if way[:2] in whole})
    wide, sites = Counter(total), dict[tuple[Way, bool], str]()
    for rank, begun in traffic.items():
        for message in begun.messages:
            way, sign = _way(rank, message), 1 if message.is_send else -1
            if way[:2] in whole:
                total[way] += sign * message.count
                wide[way] += sign * message.wide
                sites[way, message.is_send] = message.site
    _match_any(total)
    unfinished, still = [], {}
    for way, number in total.items():
        least, most = sorted((0, wide[way] if keeps else 0))
        if kept := min(max(number, least), most):
            still[way] = kept
        if excess := number - kept:
            unfinished.append(Unfinished(way, excess, sites.get((way, excess > 0), "")))
    return Balance(tuple(unfinished), still)


def _whole(
    counts: Mapping[int, tuple[GroupCount, ...]],
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The groups that no member has destroyed, and on which no wait has failed."""
    of_rank = {rank: {(c.name, c.members): c for c in mine} for rank, mine in counts.items()}
    for group in {group for mine in of_rank.values() for group in mine}:
        of_members = [of_rank.get(member, {}).get(group) for member in group[1]]
        if all(count is not None and not count.failed for count in of_members):
            yield group


def _way(rank: int, message: Messages) -> Way:
    ends = (rank, message.peer) if message.is_send else (message.peer, rank)
    return Way(message.group, message.members, *ends, message.tag)


def _match_any(total: Counter[Way]) -> None:
    """Match receives from any rank with the messages that no other receive takes."""
    for any_ in [way for way, number in total.items() if way.sender == _ANY and number < 0]:
        for way in [way for way in total if way._replace(sender=_ANY) == any_ != way]:
            taken = max(0, min(total[way], -total[any_]))
            total[way] -= taken
            total[any_] += taken
