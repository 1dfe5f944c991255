"""Prove that a test can never end, from where its ranks stand. Pure.

A rank that waits in a collective needs every member of the group, and one that waits in
an operation of the ``ddp`` fixture every rank of the test. The proof is a set
of ranks that all sleep in a wait, where each needs a member that has ended without
getting there, whose collective at the same place contradicts its own, or that is in the
set itself. Whoever computes, sleeps or reads data is in no such set, nor is one whose wait
ends by a timeout in time: a slow rank is never accused.
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
    """The rank has run its part of the test to the end."""

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
    """Why a stuck rank needs another one."""

    rank: int
    wait: Wait
    other: int
    contradiction: str
    """What the other's collective at the same place differs in, or nothing."""


def prove(stands: Mapping[int, Stand], left: float = -math.inf) -> Hang | None:
    """The proof that some ranks wait for ever; None if there is none (yet).

    Args:
        stands: every rank of the test that is alive.
        left: seconds that the test has left. A rank whose wait a timeout may end before is
            not stuck: it goes on, if only with an error that the test may expect.
    """
    lacking: dict[Wait, list[tuple[int, str]]] = {}
    needs = {
        rank: list(_needs(rank, stands, lacking))
        for rank, stand in stands.items()
        if stand.stuck and not any(wait.may_end_within(left) for wait in stand.now.waits)
    }
    hopeless = _hopeless(needs, stands)
    if not hopeless:
        return None
    chosen = [need for rank in sorted(hopeless) for need in hopeless[rank]]
    return Hang(
        sentence=_sentence(chosen, stands),
        culprits=tuple(sorted({need.other for need in chosen} - hopeless.keys())),
        table=tuple(_line(rank, stands[rank]) for rank in sorted(stands)),
        root_cause=_root_cause(chosen, stands),
    )


def _hopeless(needs: dict[int, list[Need]], stands: Mapping[int, Stand]) -> dict[int, list[Need]]:
    """The largest set of stuck ranks in which each needs an ended one or one of the set."""
    left = dict(needs)
    while True:
        kept = {
            rank: [need for need in mine if _is_in_vain(need, left, stands)]
            for rank, mine in left.items()
        }
        kept = {rank: mine for rank, mine in kept.items() if mine}
        if kept.keys() == left.keys():
            return kept
        left = kept


def _is_in_vain(need: Need, stuck: dict[int, list[Need]], stands: Mapping[int, Stand]) -> bool:
    if need.contradiction:
        # Of one operation, messages of unlike size may still end a wait, if only in garbage.
        others = (need.other,) if need.contradiction == "operation" else need.wait.members
        return all(rank in stuck or (rank in stands and stands[rank].ended) for rank in others)
    other = stands[need.other]
    return other.ended or (need.other in stuck and other.now.alone)


def _needs(
    rank: int, stands: Mapping[int, Stand], lacking: dict[Wait, list[tuple[int, str]]]
) -> Iterator[Need]:
    """Whom a rank needs; ``lacking`` has what is known of a wait that hundreds may be in."""
    for wait in stands[rank].now.waits:
        if wait.peer is not None:
            found = list(_lacking(wait, rank, stands))
        elif (known := lacking.get(wait)) is not None:
            found = known
        else:
            found = lacking[wait] = list(_lacking(wait, rank, stands))
        yield from (Need(rank, wait, *other) for other in found if other[0] != rank)


def _lacking(wait: Wait, rank: int, stands: Mapping[int, Stand]) -> Iterator[tuple[int, str]]:
    """Who has not done its part, or another one; in a collective for all of its ranks alike."""
    if wait.group == SIDE_CHANNEL and not _is_unanswered(wait, stands):
        return
    for other in wait.members if wait.peer is None else (wait.peer,):
        if other not in stands:
            continue
        contradiction = _contradiction(wait, _counterpart(wait, stands[other].now))
        if contradiction or not _has_reached(wait, rank, stands[other].now):
            yield other, contradiction


def _is_unanswered(wait: Wait, stands: Mapping[int, Stand]) -> bool:
    """False if the controller ends the exchange, because some rank will come to none."""
    return all(member in stands and not stands[member].ended for member in wait.members)


def _has_reached(wait: Wait, rank: int, other: Standing) -> bool:
    """True if the other rank did its part of what ``rank`` waits for."""
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
    # A rank that gave up a group no longer counts on it. It may have done its part: a
    # gather's sender is done long before the gather.
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
    """The other's collective at the same place, as far as it is known."""
    if wait.peer is not None:  # receives have numbers of their own
        return None
    place = wait.group, wait.number
    issued = (*other.begun, *other.done)
    return next((theirs for theirs in issued if (theirs.group, theirs.number) == place), None)


def _differ(mine: object, other: object) -> bool:
    """True if both are known and unlike."""
    return mine is not None and other is not None and mine != other


# ------------------------------------------------------------------ root cause


def _root_cause(needs: list[Need], stands: Mapping[int, Stand]) -> RootCause:
    """The ranks that are in the minority at each collective that some wait for."""
    # A receive has two ranks, of which neither is in a majority.
    waits = {(n.wait.group, n.wait.number): n.wait for n in needs if n.wait.peer is None}
    found = {minority(_kinds(wait, stands), len(wait.members)) for wait in waits.values()}
    if not found:
        return RootCause((), "a receive has two ranks, and either may be the one that is wrong")
    if len(found) > 1:
        return RootCause((), "ranks wait for several collectives, each with another minority")
    return found.pop()


def _kinds(wait: Wait, stands: Mapping[int, Stand]) -> Iterator[list[int]]:
    """The ranks that did the same at the place of a wait; the last have not come to it."""
    kinds: list[tuple[Wait, list[int]]] = [(wait, [])]
    absent = []
    for member in wait.members:
        now = stands[member].now if member in stands else None
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


def _sentence(needs: list[Need], stands: Mapping[int, Stand]) -> str:
    contradiction = next((need for need in needs if need.contradiction), None)
    if contradiction is not None:
        return _mismatch(contradiction, stands[contradiction.other].now)
    need = next((n for n in needs if stands[n.other].ended), needs[0])
    return f"deadlock: rank {need.rank} waits in {wait_words(need.wait)}, {_excuse(need, stands)}"


def _mismatch(need: Need, other: Standing) -> str:
    theirs = _counterpart(need.wait, other)
    assert theirs is not None
    detail = need.contradiction != "operation"
    done = "is done with" if theirs in other.done else "in"
    return (
        f"mismatch: rank {need.rank} waits in {wait_words(need.wait, detail=detail)}, "
        f"rank {need.other} {done} {wait_words(theirs, detail=detail, group=False)}"
    )


def _excuse(need: Need, stands: Mapping[int, Stand]) -> str:
    other = stands[need.other]
    if need.wait.peer is not None and other.ended:
        return f"rank {need.other} has ended the test and never sent it"
    if other.ended:
        return f"rank {need.other} has ended the test without it"
    waits = other.now.waits[0]
    same = waits.group == need.wait.group and need.wait.peer is None
    return f"rank {need.other} in {wait_words(waits, group=not same)}"


def wait_words(wait: Wait, *, detail: bool = False, group: bool = True) -> str:
    """What a rank waits in, as a reader knows it."""
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


def _line(rank: int, stand: Stand) -> RankLine:
    waits = "waits" if stand.now.blocked and stand.now.waits else "runs"
    return row(rank, "ended" if stand.ended else waits, stand.now)


def row(rank: int, state: str, now: Standing | None) -> RankLine:
    """A rank's row in a table, by its last answer."""
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
