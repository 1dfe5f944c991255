"""Prove that a test can never end, from the status of its ranks. Pure.

A rank that waits in a collective needs those members of the group without which it cannot end
(:mod:`pytest_ddp.deadlock.dependence`). A rank that waits in an operation of the ``ddp`` fixture
needs every rank of the test. The proof is a set of ranks that all sleep in a wait, where each needs
a member that has ended without getting there, or a member with a contradicting collective at the
same place, or a member of the set itself. Where it is not known which members a wait needs, all
others must have ended or be in the set. A rank that computes, sleeps or reads data is in no such
set. A rank whose wait ends by a timeout in time is not either: a slow rank is never accused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_ddp.deadlock.dependence import dependence
from pytest_ddp.outcome.outcome import Expiry, Hang, HangKind, RankLine, RootCause, ranks_text
from pytest_ddp.outcome.stack_dumps import short_line
from pytest_ddp.protocol.rank_status import (
    NEW_GROUP,
    SIDE_CHANNEL,
    CodeLine,
    PendingOperation,
    RankStatus,
)
from pytest_ddp.rank.operations.table import CONTRADICT

# ------------------------------------------------------------------
# Which ranks are the root cause, if ranks did different things at the same place.
#
# What the test intended is unknown. If most ranks did the same, the others are named; else none is.


def minority(kinds: Iterable[Sequence[int]], members: int) -> RootCause:
    """The ranks that differ from a strict majority, all in the same way.

    Args:
        kinds: for each thing that was done, the ranks that did it; to do nothing is one thing.
        members: the number of ranks, with those about which nothing is known.
    """
    found = sorted((kind for kind in kinds if kind), key=len)
    if members < 3:
        return RootCause((), "with fewer than three ranks there is no majority")
    if not found or 2 * len(found[-1]) <= members:
        return RootCause((), "no majority of the ranks did the same")
    if len(found) != 2:
        return RootCause((), "the ranks outside the majority did not do the same")
    return RootCause(tuple(sorted(found[0])))


@dataclass(frozen=True, slots=True)
class ProbedRank:
    """One rank at two probes."""

    now: RankStatus
    before: RankStatus | None
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
    wait: PendingOperation
    other: int
    contradiction: str
    """How the other rank's collective at the place of the wait differs, in a word; empty if it does
    not."""
    is_sure: bool
    """Whether the wait cannot end without the other rank, or only perhaps."""


def prove(probed: Mapping[int, ProbedRank], left: float = -math.inf) -> Hang | None:
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
    kind, what = _what(chosen, probed)
    return Hang(
        kind,
        what,
        culprits=tuple(sorted({need.other for need in chosen} - hopeless.keys())),
        table=tuple(_line(rank, probed[rank]) for rank in sorted(probed)),
        root_cause=_root_cause(chosen, probed),
    )


def _hopeless(
    needs: dict[int, list[Need]], probed: Mapping[int, ProbedRank]
) -> dict[int, list[Need]]:
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


def _is_in_vain(need: Need, stuck: dict[int, list[Need]], probed: Mapping[int, ProbedRank]) -> bool:
    def is_lost(rank: int, *, silent: bool) -> bool:
        if rank in stuck:
            # Another thread of a rank may do its part, but does not undo a contradicting one.
            return not silent or probed[rank].now.alone
        return rank in probed and probed[rank].ended

    # In the same operation, messages of unequal size may still end the wait, with garbage.
    if need.is_sure and need.contradiction in ("", "operation"):
        return is_lost(need.other, silent=not need.contradiction)
    others = (member for member in need.wait.members if member != need.rank)
    return all(is_lost(other, silent=not need.contradiction) for other in others)


def _needs(rank: int, probed: Mapping[int, ProbedRank]) -> Iterator[Need]:
    """The ranks that a rank needs: those that have not done their part, or another one."""
    for wait in probed[rank].now.waits:
        if wait.group == SIDE_CHANNEL and not _is_unanswered(wait, probed):
            continue
        needed = dependence(wait, rank)
        for other in needed.ranks:
            if other not in probed:
                continue
            contradiction = _contradiction(wait, _counterpart(wait, probed[other].now))
            if contradiction or not _has_reached(wait, rank, probed[other].now):
                yield Need(rank, wait, other, contradiction, needed.on_each)


def _is_unanswered(wait: PendingOperation, probed: Mapping[int, ProbedRank]) -> bool:
    """False if the controller ends the exchange, because a rank that it needs has ended."""
    return all(member in probed and not probed[member].ended for member in wait.members)


def _has_reached(wait: PendingOperation, rank: int, other: RankStatus) -> bool:
    """True if the other rank did its part of the operation in which ``rank`` waits."""
    if wait.group == SIDE_CHANNEL:
        return other.exchanges >= wait.number
    if wait.peer is not None:
        begun = other.begun_receives if wait.operation == "send" else other.begun_sends
        # A receive from any rank may take this message, or another one.
        routes = {(wait.group, peer, wait.tag) for peer in (rank, -1)}
        return sum(b.count for b in begun if (b.group, b.peer, b.tag) in routes) >= wait.number
    issued = (count.collectives for count in other.counts if count.name == wait.group)
    # A rank that destroyed a group has no count for it. It may have done its part: a sender of
    # a gather is done long before the gather is.
    return next(issued, wait.number) >= wait.number


def _contradiction(wait: PendingOperation, theirs: PendingOperation | None) -> str:
    """What differs between two collectives at the same place, in a word."""
    if theirs is None:
        return ""
    if theirs.recorded_as != wait.recorded_as:
        return "operation"
    if _differ(theirs.root, wait.root):
        return "root"
    if wait.recorded_as in CONTRADICT:
        if _differ(theirs.numel, wait.numel):
            return "size"
        if _differ(theirs.dtype, wait.dtype):
            return "dtype"
    return ""


def _counterpart(wait: PendingOperation, other: RankStatus) -> PendingOperation | None:
    """The collective that another rank has at the place of a wait; None if it is not known."""
    if wait.peer is not None:  # messages have numbers of their own
        return None
    place = wait.group, wait.number
    issued = (*other.begun, *other.done)
    return next((theirs for theirs in issued if (theirs.group, theirs.number) == place), None)


def _differ(mine: object, other: object) -> bool:
    """True if two values are known and differ."""
    return mine is not None and other is not None and mine != other


# ------------------------------------------------------------------ root cause


def _root_cause(needs: list[Need], probed: Mapping[int, ProbedRank]) -> RootCause:
    """The ranks that are in the minority at each collective in which ranks wait."""
    # A message has two ranks, so there is no majority.
    waits = {(n.wait.group, n.wait.number): n.wait for n in needs if n.wait.peer is None}
    found = {minority(_kinds(wait, probed), len(wait.members)) for wait in waits.values()}
    if not found:
        return RootCause((), "a message has two ranks, and either may be the one that is wrong")
    if len(found) > 1:
        return RootCause((), "ranks wait for several collectives, each with another minority")
    return found.pop()


def _kinds(wait: PendingOperation, probed: Mapping[int, ProbedRank]) -> Iterator[list[int]]:
    """Yield the ranks that did the same at the place of a wait; last, those that did not reach
    it."""
    kinds: list[tuple[PendingOperation, list[int]]] = [(wait, [])]
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


def _what(needs: list[Need], probed: Mapping[int, ProbedRank]) -> tuple[HangKind, str]:
    contradiction = next((need for need in needs if need.contradiction), None)
    if contradiction is not None:
        return HangKind.MISMATCH, _mismatch(contradiction, probed[contradiction.other].now)
    need = next((n for n in needs if probed[n.other].ended), needs[0])
    kind = HangKind.FOR_ENDED if probed[need.other].ended else HangKind.FOR_EACH_OTHER
    waits = f"rank {need.rank} waits in {wait_words(need.wait)}"
    return kind, f"{waits}, {_excuse(need, probed)}"


def _mismatch(need: Need, other: RankStatus) -> str:
    theirs = _counterpart(need.wait, other)
    assert theirs is not None
    detail = need.contradiction != "operation"
    done = "is done with" if theirs in other.done else "in"
    return (
        f"rank {need.rank} waits in {wait_words(need.wait, detail=detail)}, "
        f"rank {need.other} {done} {wait_words(theirs, detail=detail, group=False)}"
    )


def _excuse(need: Need, probed: Mapping[int, ProbedRank]) -> str:
    other = probed[need.other]
    if need.wait.peer is not None and other.ended:
        does = "receive" if need.wait.operation == "send" else "send"
        return f"rank {need.other} has ended the test and cannot {does} it"
    if other.ended:
        return f"rank {need.other} has ended the test without it"
    waits = other.now.waits[0]
    same = waits.group == need.wait.group and need.wait.peer is None
    return f"rank {need.other} in {wait_words(waits, group=not same)}"


def wait_words(wait: PendingOperation, *, detail: bool = False, group: bool = True) -> str:
    """The operation in which a rank waits, for readers."""
    if wait.peer is not None:
        towards = "to" if wait.operation == "send" else "from"
        return f"{wait.operation} #{wait.number} {towards} rank {wait.peer} (tag {wait.tag})"
    text = f"{wait.operation} #{wait.number}"
    if detail and (details := list(_details(wait))):
        text += f" ({', '.join(details)})"
    if not group or wait.group == SIDE_CHANNEL:
        return text
    return f"{text} of {wait.group_words}"


def _details(wait: PendingOperation) -> Iterator[str]:
    if wait.numel is not None:
        yield f"{wait.numel} x {wait.dtype}"
    if wait.root is not None:
        yield f"root {wait.root}"


def _line(rank: int, state: ProbedRank) -> RankLine:
    waits = "waits" if state.now.blocked and state.now.waits else "runs"
    return table_row(rank, "ended" if state.ended else waits, state.now)


def table_row(rank: int, state: str, now: RankStatus | None) -> RankLine:
    """A rank's row in a table, from its last answer."""
    if now is None or state == "ended":
        return RankLine(rank, state, (), "", None)
    waits = now.waits[0] if state == "waits" and now.waits else None
    engaged, name = (now.engaged, now.engaged_name) if state == "waits" else ("", "")
    if not engaged:
        engaged, name = now.beside, now.beside_name
    place = (waits and waits.site) or now.place
    return RankLine(
        rank,
        state,
        now.phase,
        wait_words(waits, detail=True) if waits else engaged,
        None if place is None else short_line(place),
        waits.group if waits else "",
        waits.number if waits else None,
        waits.operation if waits else name,
    )


# ------------------------------------------------------------------
# The ranks that hold up a test at its timeout, where no hang could be proved.
#
# A rank that waits for a peer is held up itself. The cause is a rank that does something else: it
# computes or sleeps, its process is suspended, or it holds the GIL and cannot answer.


@dataclass(frozen=True, slots=True)
class TimeoutSnapshot:
    """One rank at the test's timeout, probed twice."""

    rank: int
    ended: bool
    """Whether the rank has run its part of the test to the end."""
    suspended: bool
    """Whether a signal has stopped the rank's process."""
    busy: bool | None
    """Whether the rank's process used the processor between the probes, or only lacked one; None
    for a process that cannot be looked at, such as one on another machine."""
    before: RankStatus | None
    """The answer to the first probe; None if there was none."""
    now: RankStatus | None
    """The answer to the second probe."""
    last: RankStatus | None
    """The last answer in the whole test."""

    @property
    def state(self) -> str:
        if self.ended:
            return "ended"
        if self.suspended:
            return "suspended"
        if self.now is None:
            return "silent"
        # With slow steps, a waiting rank may have gone from one wait to the next.
        return "waits" if _is_waiting(self.before) and _is_waiting(self.now) else "runs"

    @property
    def remark(self) -> str:
        """More about the rank's state, as a predicate; empty if nothing more is known."""
        if self.state == "suspended":
            return "is suspended: a signal such as SIGSTOP has stopped its process"
        if self.state != "silent":
            return _missing_store_words(self.now) or _forked_words(self.now)
        if self.busy is None:
            return "does not answer, as in code that holds the GIL"
        if self.busy:
            return "does not answer: it computes in code that holds the GIL"
        return "does not answer: it sleeps, as in code that holds the GIL"


def _missing_store_words(now: RankStatus | None) -> str:
    if now is None or not now.missing_store:
        return ""
    return (
        f"has found no store at {now.missing_store}: TORCHELASTIC_USE_AGENT_STORE makes all ranks "
        "clients, as under torchrun; use env://, or delete the variable so that rank 0 serves it"
    )


def _forked_words(now: RankStatus | None) -> str:
    """What processes wait in that the rank has forked."""
    forked = now.forked if now is not None else ()
    if not forked:
        return ""
    waits = [f"{w.name} waits in {w.operation}{_at(w.site)}" for w in forked]
    shown = waits[:_PROCESSES] + ([f"{len(waits) - _PROCESSES} more"] if waits[_PROCESSES:] else [])
    why = "a process group does not work in a fork of the process that made it"
    return f"the forked {', '.join(shown)}: {why}"


def _at(site: CodeLine | None) -> str:
    return "" if site is None else f" at {short_line(site)}"


_PROCESSES = 3
"""Forked processes that are named."""


def _is_waiting(status: RankStatus | None) -> bool:
    return status is not None and (status.blocked or bool(status.engaged))


def diagnose_timeout(looks: Sequence[TimeoutSnapshot]) -> Expiry:
    """The state of every rank, and the ranks that are the cause of the timeout."""
    by_state: dict[str, list[int]] = {}
    for look in looks:
        by_state.setdefault(look.state, []).append(look.rank)
    waits, ended = by_state.pop("waits", []), by_state.pop("ended", [])
    others = tuple(sorted(rank for ranks in by_state.values() for rank in ranks))
    # If all that have not ended wait for peers, the minority is the cause.
    cause = RootCause(others) if others else minority([waits, ended], len(looks))
    makes_groups = any(_makes_group(look.now) for look in looks)
    remarks = {look.rank: look.remark or (makes_groups and _made_words(look)) for look in looks}
    return Expiry(
        culprits=cause.ranks,
        unknown=cause.unknown,
        table=tuple(table_row(look.rank, look.state, look.now or look.last) for look in looks),
        remarks={rank: words for rank, words in remarks.items() if words},
    )


def _makes_group(status: RankStatus | None) -> bool:
    return status is not None and status.engaged_name == NEW_GROUP


def _made_words(look: TimeoutSnapshot) -> str:
    """The groups that a rank has made, as ranks may have made them in unlike orders."""
    now = look.now or look.last
    made = now.new_groups if now is not None else ()
    listed = ", ".join(f"#{one.number} ({ranks_text(one.members)})" for one in made[-_GROUPS:])
    return f"has made {NEW_GROUP} {'..., ' * (len(made) > _GROUPS)}{listed}" if made else ""


_GROUPS = 8
"""Groups that are listed, the last ones."""
