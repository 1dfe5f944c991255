"""What a proved hang suggests about the code that has caused it: one sentence with a question.

Each sentence states only what the ranks' answers show, and asks for the rest. Where several
histories lead to the same hang there is none. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from pytest_ddp.deadlock.prover import ProbedRank
from pytest_ddp.outcome.outcome import Hang, ranks_text
from pytest_ddp.outcome.stack_dumps import short_line
from pytest_ddp.protocol.rank_status import SIDE_CHANNEL, CodeLine, PendingOperation, RankStatus

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")


def with_hint(hang: Hang, probed: Mapping[int, ProbedRank]) -> Hang:
    """The proof with the first hint that its ranks' histories allow, if there is one."""
    waiting = {
        rank: state.now.waits[0]
        for rank, state in sorted(probed.items())
        if state.stuck and state.now.waits and state.now.waits[0].group != SIDE_CHANNEL
    }
    hints = (
        *_unequal_passes(waiting, probed),
        *_passes_that_issued_less(waiting, probed),
        *_other_calls(waiting, hang, probed),
    )
    return replace(hang, hint=next(iter(hints), ""))


def _unequal_passes(
    waiting: Mapping[int, PendingOperation], probed: Mapping[int, ProbedRank]
) -> Iterator[str]:
    """A rank is in a backward pass that the others have not begun."""
    passing = {rank for rank in waiting if probed[rank].now.in_backward}
    if not passing:
        return
    ahead = max(probed[rank].now.backwards for rank in passing)
    first = min(rank for rank in passing if probed[rank].now.backwards == ahead)
    # Passes of another rank's threads are not counted, and it may be in one of them.
    behind = [
        rank
        for rank in waiting[first].members
        if rank in probed and rank not in passing and probed[rank].now.alone
    ]
    made = {probed[rank].now.backwards for rank in behind}
    if len(made) != 1 or (number := made.pop()) >= ahead:
        return
    ended = all(probed[rank].ended for rank in behind)
    whom = ranks_text(behind)
    question = f"fewer batches on {whom}, or did {whom} stop early"
    if not ended:
        question = f"fewer batches on {whom}, or a collective for {whom} alone"
    passes = f"{number or 'no'} backward pass{'es' if number > 1 else ''}"
    end = f", and {'has' if len(behind) == 1 else 'have'} ended" if ended else ""
    yield (
        f"{ranks_text(behind)} made {passes}{end}; rank {first} is in its {_ordinal(ahead)}: "
        f"{question}?"
    )


def _passes_that_issued_less(
    waiting: Mapping[int, PendingOperation], probed: Mapping[int, ProbedRank]
) -> Iterator[str]:
    """A rank waits in a backward pass for ranks that have ended theirs."""
    passing = next((rank for rank in waiting if probed[rank].now.in_backward), None)
    if passing is None:
        return
    wait, now = waiting[passing], probed[passing].now
    others = [m for m in wait.members if m in probed and not probed[m].now.in_backward]
    if others and all(_issued_less(probed[each].now, now, wait.group) for each in others):
        whom, their = ranks_text(others), "its" if len(others) == 1 else "their"
        yield (
            f"{whom} ended {their} {_ordinal(now.backwards)} backward pass without it: did "
            "parameters get no gradient there (find_unused_parameters=True), or was the pass in "
            "no_sync()?"
        )


def _issued_less(other: RankStatus, now: RankStatus, group: str) -> bool:
    """Whether a rank has ended the backward pass in which another one is, and lacked only what C++
    has issued last. It may wait in what came after the pass."""
    own, theirs = _issued(group, now), _issued(group, other)
    if own is None or theirs is None or not other.alone:
        return False
    theirs = theirs[: len(theirs) - sum(wait.group == group for wait in other.begun)]
    begun, left = own[: len(theirs)], own[len(theirs) :]
    return (
        other.backwards == now.backwards
        and theirs == begun
        and {site for _, site in left} == {None}
    )


_Issued: TypeAlias = tuple[str, CodeLine | None]
"""A collective's operation, and the line that called it; None for C++."""


def _issued(group: str, now: RankStatus) -> list[_Issued] | None:
    """What a rank issued on a group, in order; None if not all of it is known."""
    number = next((count.collectives for count in now.counts if count.name == group), None)
    known = {each.number: each for each in (*now.done, *now.begun) if each.group == group}
    if number != len(known):
        return None
    return [(each.operation, each.site) for _, each in sorted(known.items())]


def _other_calls(
    waiting: Mapping[int, PendingOperation], hang: Hang, probed: Mapping[int, ProbedRank]
) -> Iterator[str]:
    """A rank waits in a collective for ranks that have ended: were they at its line before?"""
    for rank, wait in waiting.items():
        ended = [c for c in hang.culprits if c in wait.members and probed[c].ended]
        if wait.peer is not None or wait.site is None or not ended:
            continue
        line = short_line(wait.site)
        before = {other: _numbers_at(wait, probed[other]) for other in ended}
        if all(numbers for numbers in before.values()):
            last = {max(numbers or (0,)) for numbers in before.values()}
            # With equal numbers they are in the same collective, with unlike arguments.
            if len(last) == 1 and (number := last.pop()) < wait.number:
                yield (
                    f"{ranks_text(ended)} called {wait.operation} at {line} for the last time as "
                    f"#{number}, rank {rank} again as #{wait.number}: did {ranks_text(ended)} "
                    "leave a loop earlier?"
                )
        elif all(numbers == () for numbers in before.values()):
            yield (
                f"{ranks_text(ended)} issued no collective on this group at {line}: is it in a "
                "branch for some ranks only?"
            )
        return


def _numbers_at(wait: PendingOperation, other: ProbedRank) -> tuple[int, ...] | None:
    """The numbers of another rank's collectives from the line of a wait; None if not all known."""
    done = [each for each in other.now.done if each.group == wait.group]
    issued = next((c.collectives for c in other.now.counts if c.name == wait.group), None)
    found = tuple(each.number for each in done if each.site == wait.site)
    # A rank that has destroyed the group, or has issued many, reports a part of its collectives.
    return found if found or issued == len(done) else None


def _ordinal(number: int) -> str:
    return _ORDINALS[number - 1] if number <= len(_ORDINALS) else f"pass number {number}"
