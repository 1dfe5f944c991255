"""Orders of issue on which ranks hang on NCCL: between groups, and around a collective.

Pure; imports no torch. The rule of groups, with its sources:

- NCCL's user guide, "Using multiple NCCL communicators concurrently" (2.26 and later): "users must
  ensure the order of host-side launches matches for all devices"; before, all operations had to be
  serialized in one total order.
- ``torch.distributed.new_group``, "Safe concurrent usage" (2.13): "the user must ensure a globally
  consistent execution order of collectives across ranks".

So the order in which a rank's threads *issue* operations is compared, and waits do not mend it:
with ``a`` before ``b`` on one rank and ``b`` before ``a`` on another, one of the two has both in
flight and needs them to run at the same time, whatever it waits for. A message is of its two ends
alone.

Happens-before on a rank is what is certain: the order of one thread, and what a thread issues after
it has waited for an operation of another thread. Operations of two threads without it may have been
ordered by a lock, a queue or a join, which are not seen: they are not compared.

The rule of collectives: a receiver of gloo's broadcast goes on when it has the data, a sender of
its gather when the root has it. NCCL's user guide, "Collective Operations": they have to be called
for each rank "to form a complete collective operation", and where one does not, they may hang. So
the test is run once more on paper, with collectives that end on a rank when all members have issued
them, and messages that end when both ends have. If ranks wait for each other there, the test relies
on a collective that does not wait: on gloo it has ended.

Operations whose numbers differ between the ranks that take part hold up nobody: which of them go
together is not known. What orders two threads of a rank, other than waits, is not known either.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations
from typing import NamedTuple, TypeAlias

from pytest_ddp.extensions.portable.finding import FindingKind, PortabilityFinding
from pytest_ddp.extensions.portable.issued import History, Issue, MatchKey, Step

_Operation: TypeAlias = tuple[MatchKey, int]
"""An operation, the same on all ranks: its key, and its number among those with that key."""


def order_findings(histories: Mapping[int, History]) -> Iterator[PortabilityFinding]:
    """What is found by the orders of all ranks; whoever has noted too much relies on nothing."""
    ring = cycle({rank: one.steps for rank, one in histories.items() if one.is_whole})
    reliance = [_reliance_finding(ring)] if ring else []
    # Ranks that rely on a collective have most often issued two operations in opposite orders.
    shown = {line for finding in reliance for line in finding.lines}
    found: dict[tuple[tuple[str, str], ...], PortabilityFinding] = {}
    for one in inversions(histories):
        lines = tuple((issue.name, issue.site) for issue in (*one.first, *one.second))
        found.setdefault(lines, _order_finding(one))
    yield from (finding for finding in found.values() if not shown.issuperset(finding.lines))
    yield from reliance


# ------------------------------------------------------------------ between groups


class Inversion(NamedTuple):
    """Two operations in opposite orders on two ranks."""

    ranks: tuple[int, int]
    first: tuple[Issue, Issue]
    """Both on the first rank, in its order; the second rank has issued them the other way round."""
    second: tuple[Issue, Issue]


def inversions(histories: Mapping[int, History]) -> Iterator[Inversion]:
    """The first inversion of each pair of lines, for each pair of ranks."""
    numbered = {
        rank: {(issue.key, issue.number): issue for issue in history.issues if issue.is_matched}
        for rank, history in histories.items()
    }
    for one, other in combinations(sorted(numbered), 2):
        yield from _between(one, numbered[one], other, numbered[other])


def _between(
    one: int, mine: Mapping[_Operation, Issue], other: int, theirs: Mapping[_Operation, Issue]
) -> Iterator[Inversion]:
    """Look at the other rank's issues in their order, each time for one that came before on it
    and comes after on this one."""
    common = {
        operation: issue
        for operation, issue in theirs.items()
        if operation in mine and one in issue.key.ends and other in issue.key.ends
    }
    if len({key for key, _ in common}) < 2:
        return
    seen: dict[tuple[str, int], _Prefix] = {}
    shown = set()
    for operation, issue in common.items():
        here, group = mine[operation], issue.key.group if issue.key.is_message else _COLLECTIVE
        for (of_messages, thread), prefix in seen.items():
            # Messages of one group are not compared: NCCL pairs them by their order.
            if of_messages == group != _COLLECTIVE:
                continue
            found = prefix.latest(here.thread, issue.before(thread))
            if found is None or found[0] < here.place:
                continue
            pair = mine[found[1]], theirs[found[1]]
            lines = issue.site, pair[1].site, here.site, pair[0].site
            if lines not in shown:
                shown.add(lines)
                yield Inversion((one, other), (here, pair[0]), (pair[1], issue))
        seen.setdefault((group, issue.thread), _Prefix()).add(issue.place, here)


_COLLECTIVE = ""
"""What a collective has in place of the group of a message."""


class _Prefix:
    """Issues of one thread of the other rank, and the latest that they know on this one."""

    def __init__(self) -> None:
        self._places: list[int] = []
        self._latest: list[dict[int, tuple[int, _Operation]]] = []

    def add(self, place: int, here: Issue) -> None:
        latest = {**self._latest[-1]} if self._latest else {}
        for thread in {here.thread, *here.knows}:
            known = here.before(thread)
            if thread not in latest or known > latest[thread][0]:
                latest[thread] = known, (here.key, here.number)
        self._places.append(place)
        self._latest.append(latest)

    def latest(self, thread: int, until: int) -> tuple[int, _Operation] | None:
        """The issue up to a place that comes after the most of a thread's issues on this rank."""
        number = bisect_right(self._places, until)
        return self._latest[number - 1].get(thread) if number else None


def _order_finding(inversion: Inversion) -> PortabilityFinding:
    left, right = inversion.ranks
    a, b = inversion.first
    return PortabilityFinding(
        FindingKind.GROUP_ORDER,
        f"ranks {left} and {right} issue {a.name} and {b.name} in opposite orders",
        (*_first_and_then(*inversion.first), *_first_and_then(*inversion.second)),
        "On NCCL each of them may keep the other one from running, or from making its "
        "communicator: the ranks may wait for each other for ever.",
        "issue them in the same order on all ranks.",
    )


def _first_and_then(first: Issue, second: Issue) -> Iterator[tuple[str, str]]:
    yield f"rank {first.rank} first: {first.name}", first.site
    yield f"rank {second.rank} then:  {second.name}", second.site


# ------------------------------------------------------------------ around a collective


class Blocked(NamedTuple):
    """A rank that waits for another one to issue an operation."""

    waits: Issue
    issues: Issue
    """The same operation on the next rank of the cycle, which has not come to it."""


_Thread: TypeAlias = tuple[int, int]
"""A rank, and one of its threads."""


def cycle(ranks: Mapping[int, Iterable[Step]]) -> list[Blocked]:
    """Ranks that would wait for each other if each collective waited for all; empty if none do.

    The first one waits in a collective.
    """
    ring = waiting_ring(ranks)
    first = next((at for at, one in enumerate(ring) if not one.waits.key.is_message), None)
    return [] if first is None else ring[first:] + ring[:first]


def waiting_ring(ranks: Mapping[int, Iterable[Step]]) -> list[Blocked]:
    """Ranks that would wait for each other, for messages alone as well; empty if none do."""
    threads: defaultdict[_Thread, list[Step]] = defaultdict(list)
    for rank, steps in ranks.items():
        for step in steps:
            if step.issue.is_matched:
                threads[rank, step.thread].append(step)
    comparable = set(_comparable(threads.values()))
    issued: Counter[tuple[int, MatchKey]] = Counter()
    places = dict.fromkeys(threads, 0)

    def lacking(issue: Issue) -> list[int]:
        if issue.key not in comparable:
            return []
        return [each for each in issue.key.ends if issued[each, issue.key] < issue.number]

    moved = True
    while moved:
        moved = False
        for thread, steps in threads.items():
            while (place := places[thread]) < len(steps):
                _, issue, is_wait = steps[place]
                if is_wait and lacking(issue):
                    break
                if not is_wait:
                    issued[issue.rank, issue.key] += 1
                places[thread], moved = place + 1, True
    left = {thread: steps[places[thread] :] for thread, steps in threads.items()}
    return _ring({thread: steps for thread, steps in left.items() if steps}, lacking)


def _comparable(threads: Iterable[list[Step]]) -> Iterator[MatchKey]:
    """Keys with the same number of operations on all ranks that take part."""
    issues = (step.issue for steps in threads for step in steps if not step.is_wait)
    totals = Counter((issue.rank, issue.key) for issue in issues)
    for key in {key for _, key in totals}:
        if len({totals[member, key] for member in key.ends}) == 1:
            yield key


def _ring(
    left: Mapping[_Thread, list[Step]], lacking: Callable[[Issue], list[int]]
) -> list[Blocked]:
    """Follow each blocked thread to one that has not issued what it waits for."""
    found: dict[_Thread, Blocked] = {}
    thread = next(iter(left), None)
    if thread is None:
        return []
    while thread not in found:
        waits = left[thread][0].issue
        other = lacking(waits)[0]
        at, issues = next(
            (each, step.issue)
            for each, steps in left.items()
            for step in steps
            if each[0] == other and not step.is_wait
            if (step.issue.key, step.issue.number) == (waits.key, waits.number)
        )
        found[thread], thread = Blocked(waits, issues), at
    every = list(found)
    return [found[each] for each in every[every.index(thread) :]]


def _reliance_finding(blocked: list[Blocked]) -> PortabilityFinding:
    """The finding for a collective that ends before all members have begun it."""
    first, second = blocked[0].waits, blocked[1].waits
    pairs = zip(blocked, blocked[-1:] + blocked[:-1], strict=True)
    return PortabilityFinding(
        FindingKind.RELIANCE,
        f"rank {first.rank} relies on {first.name} to end before rank {second.rank} begins it",
        tuple(line for one, last in pairs for line in _first_and_then(one.waits, last.issues)),
        "On gloo a rank goes on as soon as it has its own part of a broadcast, scatter or gather. "
        "On NCCL a collective may need all members before it ends on any: then these ranks wait "
        "for each other for ever.",
        f"let rank {second.rank} begin it before it waits for what rank {first.rank} does after "
        "it.",
    )
