"""Whether each send of a test has its receive. Pure.

What has none reaches the next test on these ranks: its receive takes the old message, its send
goes to the old receive. A rank alone cannot tell: a send may be complete before it is received.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pytest_ddp.evidence.outcome import Unfinished, Way
from pytest_ddp.wire.survey import GroupCount, Messages, Traffic

_ANY = -1


class Balance(NamedTuple):
    """What a test has left, and what is still open after it."""

    unfinished: tuple[Unfinished, ...]
    open: dict[Way, int]
    """What fixtures have begun that are still up: sends without a receive; below zero, receives."""


NOTHING = Balance((), {})


def balance(
    counts: Mapping[int, tuple[GroupCount, ...]],
    traffic: Mapping[int, Traffic],
    before: Mapping[Way, int],
    *,
    keeps: bool,
) -> Balance:
    """Hold sends against receives.

    Args:
        counts: the groups of every rank of the test.
        traffic: what ranks have begun in it.
        before: what was open when it began.
        keeps: whether a fixture is still up that may have begun some.
    """
    if any(told.unclear for told in traffic.values()):
        return NOTHING
    whole = set(_whole(counts))
    total = Counter({way: n for way, n in before.items() if way[:2] in whole})
    wide, sites = Counter(total), dict[tuple[Way, bool], str]()
    for rank, told in traffic.items():
        for message in told.messages:
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
    """The groups that all their members still have, and on which no wait has failed."""
    of_rank = {rank: {(c.name, c.members): c for c in mine} for rank, mine in counts.items()}
    for group in {group for mine in of_rank.values() for group in mine}:
        told = [of_rank.get(member, {}).get(group) for member in group[1]]
        if all(count is not None and not count.failed for count in told):
            yield group


def _way(rank: int, message: Messages) -> Way:
    ends = (rank, message.peer) if message.is_send else (message.peer, rank)
    return Way(message.group, message.members, *ends, message.tag)


def _match_any(total: Counter[Way]) -> None:
    """Give receives from any rank the messages that no other receive takes."""
    for any_ in [way for way, number in total.items() if way.sender == _ANY and number < 0]:
        for way in [way for way in total if way._replace(sender=_ANY) == any_ != way]:
            taken = max(0, min(total[way], -total[any_]))
            total[way] -= taken
            total[any_] += taken
