"""Prove that a test can never end, from the status of its ranks. Pure.

A rank that waits in a collective needs every member of the group. A rank that waits in an operation
of the ``ddp`` fixture needs every rank of the test. The proof is a set of ranks that all sleep in a
wait, where each needs a member that has ended without getting there, or a member with a
contradicting collective at the same place, or a member of the set itself. A rank that computes,
sleeps or reads data is in no such set. A rank whose wait ends by a timeout in time is not either:
a slow rank is never accused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pytest_ddp.evidence.outcome import Hang, RankLine, RootCause
from pytest_ddp.evidence.pythonstacks import shorten
from pytest_ddp.proof.minority import minority
from pytest_ddp.wire.survey import SIDE_CHANNEL, Standing, Wait, group_words

_SAME_SIZE = frozenset({"all_reduce", "broadcast", "reduce"})
"""Operations, by the flight recorder's name, that need equal tensors on all ranks."""


@dataclass(frozen=True, slots=True)
class Stand:
    """One rank at two probes."""

    now: Standing
    before: Standing | None
    """The answer to the probe before; None if there was none."""
    ended: bool
    """Whether the rank has run its part of the test to the end."""

    @property
    def stuck(self) -> bool:
        """True if the rank sleeps in a wait and has not moved between the probes."""
        return (
            not self.ended
            and self.now.blocked
            and self.before is not None
            and self.before.pulse == self.now.pulse
        )


@dataclass(frozen=True, slots=True)
class Need:
    """A stuck rank's need of another rank."""

    rank: int
    wait: Wait
    other: int
    contradiction: str
    """How the other rank's collective at the same place differs, in a word; or empty."""


def prove(probed: Mapping[int, Stand], left: float = -math.inf) -> Hang | None:
    """The proof that some ranks wait for ever; None if there is none (yet).

    Args:
        probed: every rank of the test that is alive.
        left: seconds until the test's timeout. A rank is not stuck if a timeout may end its wait
            before that: it goes on, if only with an error that the test may expect.
    """
    needs = {
        rank: list(_needs(rank, probed))
        for rank, state in probed.items()
        if state.stuck and not any(wait.may_end_within(left) for wait in state.now.waits)
    }
    hopeless = _hopeless(needs, probed)
    if not hopeless:
        return None
    chosen = [need for rank in sorted(hopeless) for need in hopeless[rank]]
    return Hang(
        sentence=_sentence(chosen, probed),
        culprits=tuple(sorted({need.other for need in chosen} - hopeless.keys())),
        table=tuple(_line(rank, probed[rank]) for rank in sorted(probed)),
        root_cause=_root_cause(chosen, probed),
    )


def _hopeless(needs: dict[int, list[Need]], probed: Mapping[int, Stand]) -> dict[int, list[Need]]:
    """The largest set of stuck ranks in which each needs an ended rank or one of the set."""
    left = dict(needs)
    # To the fixpoint: each rank that leaves the set may free those that need it.
    while True:
        kept = {
            rank: [need for need in mine if _is_in_vain(need, left, probed)]
            for rank, mine in left.items()
        }
        kept = {rank: mine for rank, mine in kept.items() if mine}
        if kept.keys() == left.keys():
            return kept
        left = kept


def _is_in_vain(need: Need, stuck: dict[int, list[Need]], probed: Mapping[int, Stand]) -> bool:
    if need.contradiction:
        # In the same operation, messages of unequal size may still end the wait, with garbage.
        others = (need.other,) if need.contradiction == "operation" else need.wait.members
        return all(rank in stuck or (rank in probed and probed[rank].ended) for rank in others)
    other = probed[need.other]
    return other.ended or (need.other in stuck and other.now.alone)


def _needs(rank: int, probed: Mapping[int, Stand]) -> Iterator[Need]:
    """The ranks that a rank needs."""
    for wait in probed[rank].now.waits:
        found = _lacking(wait, rank, probed)
        yield from (Need(rank, wait, *other) for other in found if other[0] != rank)


def _lacking(wait: Wait, rank: int, probed: Mapping[int, Stand]) -> Iterator[tuple[int, str]]:
    """Ranks that have not done their part, or another one, with the contradiction."""
    if wait.group == SIDE_CHANNEL and not _is_unanswered(wait, probed):
        return
    for other in wait.members if wait.peer is None else (wait.peer,):
        if other not in probed:
            continue
        contradiction = _contradiction(wait, _counterpart(wait, probed[other].now))
        if contradiction or not _has_reached(wait, rank, probed[other].now):
            yield other, contradiction


def _is_unanswered(wait: Wait, probed: Mapping[int, Stand]) -> bool:
    """False if the controller ends the exchange, because a rank that it needs has ended."""
    return all(member in probed and not probed[member].ended for member in wait.members)


def _has_reached(wait: Wait, rank: int, other: Standing) -> bool:
    """True if the other rank did its part of the operation in which ``rank`` waits."""
    if wait.group == SIDE_CHANNEL:
        return other.exchanges >= wait.number
    if wait.peer is not None:
        sent = (
            message.count
            for message in other.sent
            if (message.group, message.receiver, message.tag) == (wait.group, rank, wait.tag)
        )
        return next(sent, 0) >= wait.number
    issued = (count.collectives for count in other.counts if count.name == wait.group)
    # A rank that destroyed a group has no count for it. It may have done its part: a sender of
    # a gather is done long before the gather is.
    return next(issued, wait.number) >= wait.number


def _contradiction(wait: Wait, theirs: Wait | None) -> str:
    """What differs between two collectives at the same place, in a word."""
    if theirs is None:
        return ""
    if theirs.recorded_as != wait.recorded_as:
        return "operation"
    if _differ(theirs.root, wait.root):
        return "root"
    if wait.recorded_as in _SAME_SIZE:
        if _differ(theirs.numel, wait.numel):
            return "size"
        if _differ(theirs.dtype, wait.dtype):
            return "dtype"
    return ""


def _counterpart(wait: Wait, other: Standing) -> Wait | None:
    """The other rank's collective at the same place; None if it is not known."""
    if wait.peer is not None:  # receives have numbers of their own
        return None
    place = wait.group, wait.number
    issued = (*other.begun, *other.done)
    return next((theirs for theirs in issued if (theirs.group, theirs.number) == place), None)


def _differ(mine: object, other: object) -> bool:
    """True if both are known and they differ."""
    return mine is not None and other is not None and mine != other


# ------------------------------------------------------------------ root cause


def _root_cause(needs: list[Need], probed: Mapping[int, Stand]) -> RootCause:
    """The ranks that are in the minority at each collective in which ranks wait."""
    # A receive has two ranks, so there is no majority.
    waits = {(n.wait.group, n.wait.number): n.wait for n in needs if n.wait.peer is None}
    found = {minority(_kinds(wait, probed), len(wait.members)) for wait in waits.values()}
    if not found:
        return RootCause((), "a receive has two ranks, and either may be the one that is wrong")
    if len(found) > 1:
        return RootCause((), "ranks wait for several collectives, each with another minority")
    return found.pop()


def _kinds(wait: Wait, probed: Mapping[int, Stand]) -> Iterator[list[int]]:
    """The ranks that did the same at the place of a wait; last, those that did not reach it."""
    kinds: list[tuple[Wait, list[int]]] = [(wait, [])]
    absent = []
    for member in wait.members:
        now = probed[member].now if member in probed else None
        if now is None or not _has_reached(wait, member, now):
            absent.append(member)
            continue
        theirs = _counterpart(wait, now)
        same = (ranks for kind, ranks in kinds if not _contradiction(kind, theirs))
        if (ranks := next(same, None)) is not None:
            ranks.append(member)
        elif theirs is not None:
            kinds.append((theirs, [member]))
    yield from (ranks for _, ranks in kinds)
    yield absent


# ------------------------------------------------------------------ words


def _sentence(needs: list[Need], probed: Mapping[int, Stand]) -> str:
    contradiction = next((need for need in needs if need.contradiction), None)
    if contradiction is not None:
        return _mismatch(contradiction, probed[contradiction.other].now)
    need = next((n for n in needs if probed[n.other].ended), needs[0])
    return f"deadlock: rank {need.rank} waits in {wait_words(need.wait)}, {_excuse(need, probed)}"


def _mismatch(need: Need, other: Standing) -> str:
    theirs = _counterpart(need.wait, other)
    assert theirs is not None
    detail = need.contradiction != "operation"
    done = "is done with" if theirs in other.done else "in"
    return (
        f"mismatch: rank {need.rank} waits in {wait_words(need.wait, detail=detail)}, "
        f"rank {need.other} {done} {wait_words(theirs, detail=detail, group=False)}"
    )


def _excuse(need: Need, probed: Mapping[int, Stand]) -> str:
    other = probed[need.other]
    if need.wait.peer is not None and other.ended:
        return f"rank {need.other} has ended the test and never sent it"
    if other.ended:
        return f"rank {need.other} has ended the test without it"
    waits = other.now.waits[0]
    same = waits.group == need.wait.group and need.wait.peer is None
    return f"rank {need.other} in {wait_words(waits, group=not same)}"


def wait_words(wait: Wait, *, detail: bool = False, group: bool = True) -> str:
    """The operation in which a rank waits, for readers."""
    if wait.peer is not None:
        return f"recv #{wait.number} from rank {wait.peer} (tag {wait.tag})"
    text = f"{wait.operation} #{wait.number}"
    if detail and (details := list(_details(wait))):
        text += f" ({', '.join(details)})"
    if not group or wait.group == SIDE_CHANNEL:
        return text
    return f"{text} of {group_words(wait.group, wait.members)}"


def _details(wait: Wait) -> Iterator[str]:
    if wait.numel is not None:
        yield f"{wait.numel} x {wait.dtype}"
    if wait.root is not None:
        yield f"root {wait.root}"


def _line(rank: int, state: Stand) -> RankLine:
    waits = "waits" if state.now.blocked and state.now.waits else "runs"
    return row(rank, "ended" if state.ended else waits, state.now)


def row(rank: int, state: str, now: Standing | None) -> RankLine:
    """A rank's row in a table, from its last answer."""
    if now is None or state == "ended":
        return RankLine(rank, state, "", "", "")
    waits = now.waits[0] if state == "waits" and now.waits else None
    engaged = (now.engaged if state == "waits" else "") or now.beside
    return RankLine(
        rank,
        state,
        now.phase,
        wait_words(waits, detail=True) if waits else engaged,
        _shorten_place(waits.site if waits and waits.site else now.place),
        waits.group if waits else "",
        waits.number if waits else None,
    )


def _shorten_place(place: str) -> str:
    file, colon, rest = place.partition(":")
    return f"{shorten(file)}{colon}{rest}"
