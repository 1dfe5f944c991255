"""Sentences on what a test changed or left behind: one for each kind of thing, over all ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from pytest_ddp.evidence.outcome import RunOutcome, Unfinished
from pytest_ddp.evidence.pythonstacks import shorten
from pytest_ddp.verdict.trouble import without_addresses
from pytest_ddp.wire.protocol import Done

_SHOWN = 3
"""Names in a list at most."""


def remarks(outcome: RunOutcome) -> list[str]:
    """Sentences about the test, each of which becomes a warning."""
    done = {rank.rank: rank.done for rank in outcome.ranks if rank.done is not None}
    everywhere = len(outcome.ranks)
    left = *_left(done, everywhere), *_unfinished(outcome)
    return [*outcome.suspicions, *_changes(done, everywhere), *left]


def _changes(done: dict[int, Done], everywhere: int) -> Iterator[str]:
    changes = [(rank, *_split(text)) for rank, each in done.items() for text in each.changes]
    for kind in dict.fromkeys(kind for _, kind, _ in changes):
        ranks = [rank for rank, its, _ in changes if its == kind]
        how = _listed(how for _, its, how in changes if its == kind)
        yield f"changed {kind}{how}{_on(ranks, everywhere)}; restored"


def _split(change: str) -> tuple[str, str]:
    """The thing that was changed, and how: ``torch's default dtype``, ``float32 -> float64``."""
    kind, opened, how = change.partition(" (")
    return kind, how.removesuffix(")") if opened else ""


def _left(done: dict[int, Done], everywhere: int) -> Iterator[str]:
    leaks = [(rank, left) for rank, each in done.items() for left in each.rank_doubt]
    for kind in dict.fromkeys(left.kind for _, left in leaks):
        names: dict[int, list[str]] = {}
        for rank, left in leaks:
            if left.kind == kind:
                names.setdefault(rank, []).append(left.which)
        (first, most), *others = _by_names(names)
        which = _listed(first)
        what = f"{_counted(kind, len(first)) if which else kind}{which}"
        where = _on(most, everywhere)
        also = "".join(
            f", {len(n)}{_listed(n)}{_on(some, everywhere)}" for n, some in others[:_SHOWN]
        )
        if rest := [rank for _, some in others[_SHOWN:] for rank in some]:
            also += f", others{_on(rest, everywhere)}"
        ranks_are = "the rank is" if len(names) == 1 else "the ranks are"
        yield f"left {what} behind{where}{also}; {ranks_are} replaced"


def _unfinished(outcome: RunOutcome) -> Iterator[str]:
    kept = "the group is kept, and the next test may meet them"
    then = kept if outcome.keeps_group else "the process group is built anew"
    for own, is_send in itertools.product((True, False), repeat=2):
        same = [u for u in outcome.unfinished if (bool(u.site), u.count > 0) == (own, is_send)]
        if same:
            subject = "" if own else "a fixture that has ended "
            kind, lacks = ("send", "receive") if is_send else ("receive", "send")
            what = _counted(kind, sum(abs(each.count) for each in same))
            listed = _listed(map(_way, same))
            yield f"{subject}left {what} without a {lacks} behind{listed}; {then}"


def _way(one: Unfinished) -> str:
    group, _, sender, receiver, number = one.way
    ends = ["any rank" if end < 0 else f"rank {end}" for end in (sender, receiver)]
    way = " to ".join(ends) if one.count > 0 else " from ".join(reversed(ends))
    tag = f"tag {number}" if number else ""
    where = f"group {group!r}" if group != "0" else ""
    return ", ".join(filter(None, (way, tag, where, shorten(one.site) if one.site else "")))


def _by_names(names: dict[int, list[str]]) -> list[tuple[list[str], list[int]]]:
    """The things left behind, longest list first, each with the ranks that left the same."""
    found: dict[tuple[str, ...], tuple[list[str], list[int]]] = {}
    for rank, mine in names.items():
        found.setdefault(tuple(sorted(map(without_addresses, mine))), (mine, []))[1].append(rank)
    return sorted(found.values(), key=lambda pair: -len(pair[0]))


def _counted(kind: str, number: int) -> str:
    if number == 1:
        return f"a {kind}"
    return f"{number} {kind}{'es' if kind.endswith('s') else 's'}"


def _listed(names: Iterable[str]) -> str:
    """Names that differ in more than an address, in brackets; empty if there is none."""
    by_plain: dict[str, str] = {}
    for name in filter(None, names):
        by_plain.setdefault(without_addresses(name), name)
    listed = [*by_plain.values()]
    more = len(listed) - _SHOWN
    shown = "; ".join([*listed[:_SHOWN], *([f"{more} more"] if more > 0 else [])])
    return f" ({shown})" if shown else ""


def _on(ranks: list[int], everywhere: int) -> str:
    some = sorted({*ranks})
    if len(some) == everywhere:
        return ""
    return f" on rank{'s' if len(some) > 1 else ''} {', '.join(map(str, some))}"
