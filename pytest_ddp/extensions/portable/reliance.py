"""Programs that end on gloo because a collective does not wait for all members. Pure.

A receiver of gloo's broadcast goes on when it has the data, a sender of its gather when the root
has it. NCCL's user guide, "Collective Operations": they have to be called for each rank "to form a
complete collective operation", and where one does not, they may hang. So the test is run once more
on paper, with collectives that end on a rank when all members have issued them, and messages that
end when both ends have. If ranks wait for each other there, the test relies on a collective that
does not wait: on gloo it has ended.

Operations whose numbers differ between the ranks that take part hold up nobody: which of them go
together is not known. What orders two threads of a rank, other than waits, is not known either.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from pytest_ddp.extensions.portable.orders import MatchKey


class NumberedOperation(NamedTuple):
    """An operation of one rank."""

    key: MatchKey
    number: int
    """Which one with its key it is, from 1."""
    name: str
    site: str


class Step(NamedTuple):
    """What a thread does: issue an operation, or wait for it."""

    operation: NumberedOperation
    is_wait: bool


class Blocked(NamedTuple):
    """A rank that waits for another one to issue an operation."""

    rank: int
    waits: NumberedOperation
    issues: NumberedOperation
    """The same operation on the next rank of the cycle, which has not come to it."""


Thread: TypeAlias = tuple[int, int]
"""A rank, and which of its threads."""


def read(rank: int, sent: Mapping[str, Any]) -> dict[Thread, list[Step]]:
    """The steps of each thread of a rank, from what it has sent."""
    counts: Counter[MatchKey] = Counter()
    operations = []
    for kind, group, made, tag, members, name, site in sent["operations"]:
        key = MatchKey(kind, group, made, tag, tuple(members))
        counts[key] += 1
        operations.append(NumberedOperation(key, counts[key], name, site))
    steps: defaultdict[Thread, list[Step]] = defaultdict(list)
    for thread, number, is_wait in sent["log"]:
        steps[rank, thread].append(Step(operations[number], is_wait))
    return steps


def cycle(ranks: Mapping[int, Mapping[Thread, list[Step]]]) -> list[Blocked]:
    """Ranks that would wait for each other if each collective waited for all; empty if none do.

    The first one waits in a collective.
    """
    threads = {thread: steps for each in ranks.values() for thread, steps in each.items()}
    comparable = set(_comparable(threads))
    issued: Counter[tuple[int, MatchKey]] = Counter()
    places = dict.fromkeys(threads, 0)

    def lacking(operation: NumberedOperation) -> list[int]:
        if operation.key not in comparable:
            return []
        members = operation.key.members
        return [each for each in members if issued[each, operation.key] < operation.number]

    moved = True
    while moved:
        moved = False
        for thread, steps in threads.items():
            while (place := places[thread]) < len(steps):
                operation, is_wait = steps[place]
                if is_wait and lacking(operation):
                    break
                if not is_wait:
                    issued[thread[0], operation.key] += 1
                places[thread], moved = place + 1, True
    left = {thread: steps[places[thread] :] for thread, steps in threads.items()}
    left = {thread: steps for thread, steps in left.items() if steps}
    return _cycle(left, lacking)


def _cycle(left: Mapping[Thread, list[Step]], lacking: Any) -> list[Blocked]:
    """Follow each blocked thread to one that has not issued what it waits for."""
    found: dict[Thread, Blocked] = {}
    thread = next(iter(left), None)
    while thread is not None and thread not in found:
        waits = left[thread][0].operation
        other = lacking(waits)[0]
        thread_of_other, issues = next(
            (each, step.operation)
            for each, steps in left.items()
            for step in steps
            if each[0] == other
            and not step.is_wait
            and step.operation[:2] == (waits.key, waits.number)
        )
        found[thread] = Blocked(thread[0], waits, issues)
        thread = thread_of_other
    if thread is None:
        return []
    every = list(found)
    ring = [found[each] for each in every[every.index(thread) :]]
    first = next((at for at, one in enumerate(ring) if one.waits.key.kind == "collective"), None)
    return [] if first is None else ring[first:] + ring[:first]


def _comparable(threads: Mapping[Thread, list[Step]]) -> Iterator[MatchKey]:
    """Keys with the same number of operations on all ranks that take part."""
    totals: Counter[tuple[int, MatchKey]] = Counter()
    for (rank, _), steps in threads.items():
        for operation, is_wait in steps:
            if not is_wait:
                totals[rank, operation.key] += 1
    for key in {key for _, key in totals}:
        if len({totals[member, key] for member in key.members}) == 1:
            yield key
