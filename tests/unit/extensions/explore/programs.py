"""Small programs of several threads, and all orders in which their events can come.

A program is made in one order in which it can run, so that it never waits for itself. What the
interpreter knows of the world is not what records say: it lets a thread go on where real torch
would, and :func:`record` writes the tokens that :mod:`run_events` promises.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from pytest_ddp.extensions.explore.ranks.accesses import Access, Thing, ThingKind
from pytest_ddp.extensions.explore.run_events import Event, Events, RankThread, Threads


def event(
    thread: RankThread | int,
    at: float,
    point: str = "",
    number: int = 1,
    *,
    site: str = "",
    uses: Sequence[Access] = (),
    gives: Sequence[str] = (),
    takes: Sequence[str] = (),
) -> Event:
    place = RankThread(thread) if isinstance(thread, int) else thread
    return Event(place, at, point, number, site, tuple(uses), tuple(gives), tuple(takes))


def reads(name: str, kind: str = "file", verb: str = "reads") -> Access:
    return Access(Thing(ThingKind(kind), name), changes=False, verb=verb)


def changes(name: str, kind: str = "file", verb: str = "writes") -> Access:
    return Access(Thing(ThingKind(kind), name), changes=True, verb=verb)


def by_threads(events: Sequence[Event]) -> Threads:
    """Events of several threads, in the order in which they came, as a record."""
    threads = sorted({event.thread for event in events})
    return tuple(tuple(e for e in events if e.thread == thread) for thread in threads)


Done: TypeAlias = tuple[int, ...]
"""How many events of each thread are over."""


def orders(threads: Sequence[Events], may_run: Callable[[Done, int], bool]) -> set[Pair]:
    """All ``(one, other)`` for which some schedule has the one before the other.

    Args:
        threads: their events.
        may_run: whether the next event of a thread can come, after those that are over.
    """
    spots = [(t, e) for t, events in enumerate(threads) for e in range(len(events))]
    found: set[Pair] = set()
    begin = (0,) * len(threads)
    seen, left = {begin}, [begin]
    while left:
        done = left.pop()
        for one, other in itertools.product(spots, repeat=2):
            if one[1] < done[one[0]] and other[1] >= done[other[0]]:
                found.add((one, other))
        for thread, events in enumerate(threads):
            if done[thread] < len(events) and may_run(done, thread):
                after = (*done[:thread], done[thread] + 1, *done[thread + 1 :])
                if after not in seen:
                    seen.add(after)
                    left.append(after)
    return found


Pair: TypeAlias = tuple[tuple[int, int], tuple[int, int]]
"""Two events, each by its thread's place and its own."""


def tokens_allow(threads: Sequence[Events]) -> Callable[[Done, int], bool]:
    """An event can come when each token that it takes and somebody gives is given."""
    givers: dict[str, list[tuple[int, int]]] = {}
    for thread, events in enumerate(threads):
        for place, each in enumerate(events):
            for token in each.gives:
                givers.setdefault(token, []).append((thread, place))

    def may_run(done: Done, thread: int) -> bool:
        return all(
            any(place < done[giver] for giver, place in givers[token])
            for token in threads[thread][done[thread]].takes
            if token in givers
        )

    return may_run


# ---------------------------------------------------------------- programs as ranks run them


class Step(NamedTuple):
    """What a thread does next."""

    thread: int
    does: str
    """``use``, ``issue``, ``wait``, ``send``, ``receive``, ``set``, ``get``, ``end``, ``join``."""
    what: str = ""
    """An operation, a key, a message, or the number of a thread."""
    number: int = 0
    """Which operation of all: collectives of one number belong together."""


NEEDED: dict[str, Callable[[int, int], bool]] = {
    "barrier": lambda own, other: True,
    "broadcast": lambda own, other: other == 0,
    "gather": lambda own, other: own == 0,
    "scatter": lambda own, other: other == 0,
    "all_reduce": lambda own, other: True,
}
"""Whether a rank's part is complete on no schedule without another's; the root is rank 0."""


def record(steps: Sequence[Step]) -> Threads:
    """What recorders write of a program that ran in the order of its steps."""
    return by_threads([_recorded(step, at, steps) for at, step in enumerate(steps)])


def _recorded(step: Step, at: int, steps: Sequence[Step]) -> Event:
    def name(thread: int) -> str:
        return f"{step.what} {step.number} {thread}"

    gives: list[str] = []
    takes: list[str] = []
    match step.does:
        case "issue":
            gives = [name(step.thread)]
        case "wait":
            others = {s.thread for s in steps if (s.does, s.number) == ("issue", step.number)}
            needed = NEEDED[step.what]
            takes = [name(o) for o in sorted(others) if o != step.thread and needed(step.thread, o)]
        case "send" | "set" | "end":
            gives = [f"{step.what} {step.number}"]
        case "receive" | "get" | "join":
            takes = [f"{step.what} {step.number}"]
    return event(step.thread, at, f"{step.does} {step.what}", gives=gives, takes=takes)


def as_torch_runs(steps: Sequence[Step]) -> Callable[[Done, int], bool]:
    """Whether the next step of a thread can come, by what its operation waits for."""
    threads = sorted({step.thread for step in steps})
    own = [[step for step in steps if step.thread == thread] for thread in threads]

    def over(done: Done) -> Iterator[Step]:
        for thread, count in enumerate(done):
            yield from own[thread][:count]

    def may_run(done: Done, thread: int) -> bool:
        step = own[thread][done[thread]]
        before = {(s.does, s.what, s.number, s.thread) for s in over(done)}
        anybody = {key[:3] for key in before}
        match step.does:
            case "wait":
                members = {s.thread for s in steps if (s.does, s.number) == ("issue", step.number)}
                issued = {m for m in members if ("issue", step.what, step.number, m) in before}
                match step.what:
                    case "barrier" | "all_reduce":
                        return issued == members
                    case "broadcast" | "scatter":
                        return step.thread == 0 or 0 in issued
                    case "gather":
                        return step.thread != 0 or issued == members
            case "receive":
                return ("send", step.what, step.number) in anybody
            case "get":
                return ("set", step.what, step.number) in anybody
            case "join":
                return ("end", step.what, step.number) in anybody
        return True

    return may_run
