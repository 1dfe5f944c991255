"""Builders of what ranks answer to probes, for tests of the proof and of the comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pytest_ddp.deadlock.prover import ProbedRank, prove
from pytest_ddp.outcome.outcome import Hang
from pytest_ddp.protocol.rank_status import (
    SIDE_CHANNEL,
    BegunMessages,
    CallRecord,
    CodeLine,
    GroupCount,
    PendingOperation,
    RankStatus,
)

WORLD = "0"
"""Name of the default group."""
SITE = "/src/test_made.py"


def code_line(text: str) -> CodeLine:
    """The line of code of a text such as ``/src/a.py:7 in step``, or ``/src/a.py:7``."""
    file, _, rest = text.rpartition(":")
    line, _, function = rest.partition(" in ")
    return CodeLine(file, int(line), function)


def collective(
    number: int,
    *members: int,
    operation: str = "all_reduce",
    group: str = WORLD,
    **known: Any,
) -> PendingOperation:
    """A collective that is begun and not complete."""
    fields: dict[str, Any] = {
        "recorded_as": operation,
        "numel": 4,
        "dtype": "float32",
        "site": CodeLine(SITE, 10 + number),
    }
    return PendingOperation(
        group=group,
        members=members,
        number=number,
        operation=operation,
        peer=None,
        tag=None,
        **(fields | known),
    )


def message(
    operation: str, number: int, peer: int, *members: int, tag: int = 0, group: str = WORLD
) -> PendingOperation:
    """A send or receive whose other end has not come."""
    return PendingOperation(
        group=group,
        members=members,
        number=number,
        operation=operation,
        recorded_as=None,
        numel=None,
        dtype=None,
        peer=peer,
        tag=tag,
        site=None,
    )


receive, send = partial(message, "recv"), partial(message, "send")


def exchange(number: int, *members: int, operation: str = "gather") -> PendingOperation:
    """An operation of the ``ddp`` fixture that is not answered."""
    return collective(
        number,
        *members,
        operation=f"ddp.{operation}",
        group=SIDE_CHANNEL,
        recorded_as=None,
        numel=None,
        dtype=None,
        site=None,
    )


def count(collectives: int, *members: int, group: str = WORLD, **digests: Any) -> GroupCount:
    """What a rank issued on one group."""
    return GroupCount(group, members, collectives, **digests)


def standing(
    *waits: PendingOperation,
    begun: tuple[PendingOperation, ...] | None = None,
    done: tuple[PendingOperation, ...] = (),
    counts: tuple[GroupCount, ...] | None = None,
    begun_sends: tuple[BegunMessages, ...] = (),
    begun_receives: tuple[BegunMessages, ...] = (),
    **known: Any,
) -> RankStatus:
    """A rank that sleeps in a wait for these, and has issued them and all before them."""
    exchanges = tuple(wait for wait in waits if wait.group == SIDE_CHANNEL)
    of_groups = tuple(wait for wait in waits if wait not in exchanges)
    collectives = tuple(wait for wait in of_groups if wait.peer is None)
    fields: dict[str, Any] = {
        "exchanges": max((wait.number for wait in exchanges), default=0),
        "pulse": "still",
        "blocked": bool(waits),
        "alone": True,
        "phase": ("call",),
        "place": CodeLine(SITE, 7, "test_made"),
    }
    return RankStatus(
        test=1,
        number=2,
        waits=waits,
        begun=collectives if begun is None else begun,
        done=done,
        counts=_counts(of_groups) if counts is None else counts,
        begun_sends=begun_sends,
        begun_receives=begun_receives,
        **(fields | known),
    )


def _counts(waits: tuple[PendingOperation, ...]) -> tuple[GroupCount, ...]:
    issued = {wait.group: count(0, *wait.members, group=wait.group) for wait in waits}
    for wait in waits:
        known = issued[wait.group]
        if wait.peer is None and wait.number > known.collectives:
            issued[wait.group] = replace(known, collectives=wait.number)
    return tuple(issued.values())


def stuck(*waits: PendingOperation, **known: Any) -> ProbedRank:
    """A rank that gave the same answer at the probe before."""
    now = standing(*waits, **known)
    return ProbedRank(now, replace(now, number=1), ended=False)


def running(*counts: GroupCount, **known: Any) -> ProbedRank:
    """A rank that computes, sleeps or reads data between collectives."""
    now = standing(counts=counts, **known)
    return ProbedRank(now, replace(now, number=1), ended=False)


def ended(*counts: GroupCount, **known: Any) -> ProbedRank:
    """A rank that has run its part to the end."""
    return ProbedRank(standing(counts=counts, **known), None, ended=True)


def renamed(stands: Mapping[int, ProbedRank], names: Mapping[int, int]) -> dict[int, ProbedRank]:
    """Return the stands with every rank under another number."""
    return {
        names[rank]: ProbedRank(
            _renamed(stand.now, names),
            None if stand.before is None else _renamed(stand.before, names),
            stand.ended,
        )
        for rank, stand in stands.items()
    }


def _renamed(made: RankStatus, names: Mapping[int, int]) -> RankStatus:
    return replace(
        made,
        waits=tuple(_renamed_wait(wait, names) for wait in made.waits),
        begun=tuple(_renamed_wait(wait, names) for wait in made.begun),
        done=tuple(_renamed_wait(wait, names) for wait in made.done),
        counts=tuple(
            replace(count, members=tuple(names[rank] for rank in count.members))
            for count in made.counts
        ),
        begun_sends=tuple(replace(each, peer=names[each.peer]) for each in made.begun_sends),
        begun_receives=tuple(
            replace(each, peer=names.get(each.peer, -1)) for each in made.begun_receives
        ),
    )


def _renamed_wait(wait: PendingOperation, names: Mapping[int, int]) -> PendingOperation:
    members = tuple(names[rank] for rank in wait.members)
    peer, root = (None if rank is None else names[rank] for rank in (wait.peer, wait.root))
    return replace(wait, members=members, peer=peer, root=root)


def call(number: int, operation: str = "all_reduce", **known: Any) -> CallRecord:
    """A collective that Python code asked for."""
    fields: dict[str, Any] = {
        "group": WORLD,
        "numel": 4,
        "dtype": "float32",
        "reduce_op": "SUM",
        "root": None,
        "site": CodeLine("/src/no_such_file.py", 1),
    }
    if not operation.startswith(("all_reduce", "reduce")):
        fields["reduce_op"] = None
    return CallRecord(number=number, operation=operation, **(fields | known))


def ring(size: int, start: int = 0) -> dict[int, ProbedRank]:
    """Every rank waits for a message from the next one."""
    ranks = [start + i for i in range(size)]
    return {
        rank: stuck(receive(1, ranks[(i + 1) % size], *ranks), counts=())
        for i, rank in enumerate(ranks)
    }


def accused(stands: Mapping[int, ProbedRank]) -> set[int]:
    """The ranks that wait for ever, by the proof."""
    hang = prove(stands)
    if hang is None:
        return set()
    return {line.rank for line in hang.table if line.state == "waits"}


def proof(stands: Mapping[int, ProbedRank]) -> Hang:
    """The proof of a hang in these stands; there must be one."""
    hang = prove(stands)
    assert hang is not None
    return hang


def pair(number: int) -> PendingOperation:
    """A collective of two ranks."""
    return collective(number, 0, 1)
