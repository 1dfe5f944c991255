"""What a test changed or left behind, in sentences: one for each kind of thing, over all ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from itertools import groupby

from pytest_ddp.evidence.outcome import RunOutcome, Unfinished
from pytest_ddp.evidence.pythonstacks import shorten
from pytest_ddp.verdict.trouble import without_addresses
from pytest_ddp.wire.protocol import Done

_SHOWN = 3
"""Names in a list before it is cut short."""


def remarks(outcome: RunOutcome) -> list[str]:
    """Sentences about the test, each of which becomes a warning."""
    done = {rank.rank: rank.done for rank in outcome.ranks if rank.done is not None}
    everywhere = len(outcome.ranks)
    left = *_left(done, everywhere), *_unfinished(outcome)
    return [*outcome.suspicions, *_changes(done, everywhere), *left]


def _changes(done: dict[int, Done], everywhere: int) -> Iterator[str]:
    told = [(rank, *_parted(text)) for rank, each in done.items() for text in each.changes]
    for kind in dict.fromkeys(kind for _, kind, _ in told):
        ranks = [rank for rank, its, _ in told if its == kind]
        how = _listed(how for _, its, how in told if its == kind)
        yield f"changed {kind}{how}{_on(ranks, everywhere)}; restored"


def _parted(change: str) -> tuple[str, str]:
    """What was changed, and how: ``torch's default dtype``, ``float32 -> float64``."""
    kind, opened, how = change.partition(" (")
    return kind, how.removesuffix(")") if opened else ""


def _left(done: dict[int, Done], everywhere: int) -> Iterator[str]:
    told = [(rank, left) for rank, each in done.items() for left in each.rank_doubt]
    for kind in dict.fromkeys(left.kind for _, left in told):
        ranks = [rank for rank, left in told if left.kind == kind]
        names = _listed(left.which for _, left in told if left.kind == kind)
        (number, most), *fewer = _by_count(ranks)
        what = f"{_counted(kind, number) if names else kind}{names}"
        where = _on(most, everywhere)
        others = "".join(f", {number}{_on(some, everywhere)}" for number, some in fewer)
        whose = "the rank is" if len({*ranks}) == 1 else "the ranks are"
        yield f"left {what} behind{where}{others}; {whose} replaced"


def _unfinished(outcome: RunOutcome) -> Iterator[str]:
    kept = "the group is kept, and the next test may meet them"
    then = kept if outcome.keeps_group else "the process group is built anew"
    for own, is_send in itertools.product((True, False), repeat=2):
        alike = [u for u in outcome.unfinished if (bool(u.site), u.count > 0) == (own, is_send)]
        if alike:
            who = "" if own else "a fixture that has ended "
            kind, lacks = ("send", "receive") if is_send else ("receive", "send")
            what = _counted(kind, sum(abs(one.count) for one in alike))
            yield f"{who}left {what} without a {lacks} behind{_listed(map(_way, alike))}; {then}"


def _way(one: Unfinished) -> str:
    group, _, sender, receiver, number = one.way
    ends = ["any rank" if end < 0 else f"rank {end}" for end in (sender, receiver)]
    way = " to ".join(ends) if one.count > 0 else " from ".join(reversed(ends))
    tag = f"tag {number}" if number else ""
    where = f"group {group!r}" if group != "0" else ""
    return ", ".join(filter(None, (way, tag, where, shorten(one.site) if one.site else "")))


def _by_count(ranks: list[int]) -> list[tuple[int, list[int]]]:
    """Each number of times that a rank is in the list, with those that are in it so often."""

    def count(rank: int) -> int:
        return ranks.count(rank)

    by_count = groupby(sorted(dict.fromkeys(ranks), key=count, reverse=True), key=count)
    return [(number, list(alike)) for number, alike in by_count]


def _counted(kind: str, number: int) -> str:
    if number == 1:
        return f"a {kind}"
    return f"{number} {kind}{'es' if kind.endswith('s') else 's'}"


def _listed(names: Iterable[str]) -> str:
    """Names that differ in more than an address, in brackets; nothing if there is none."""
    known: dict[str, str] = {}
    for name in filter(None, names):
        known.setdefault(without_addresses(name), name)
    listed = [*known.values()]
    more = len(listed) - _SHOWN
    shown = "; ".join([*listed[:_SHOWN], *([f"{more} more"] if more > 0 else [])])
    return f" ({shown})" if shown else ""


def _on(ranks: list[int], everywhere: int) -> str:
    some = sorted({*ranks})
    if len(some) == everywhere:
        return ""
    return f" on rank{'s' if len(some) > 1 else ''} {', '.join(map(str, some))}"
