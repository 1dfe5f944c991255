"""Which events of a run are ordered on every schedule: by their thread, and by tokens. Pure.

Each event knows how many events of each thread come before it (a vector clock). An order that is
assumed and not real hides a race, so whatever is doubtful orders nothing: a token that several
events give, one that none gives, and those of events that would come before themselves.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple

from pytest_ddp.extensions.explore.run_events import Event, Events


class Spot(NamedTuple):
    """An event, by the place of its thread among the threads and its own among the events."""

    thread: int
    event: int


class Order:
    """What comes before what, of the events of some threads."""

    def __init__(self, threads: Sequence[Events]) -> None:
        self._clocks: list[list[tuple[int, ...]]] = [[] for _ in threads]
        givers = _givers(threads)
        taken = {token for events in threads for event in events for token in event.takes}
        self._tokens = givers.keys() & taken
        # A thread waits at an event for a giver that has no clock yet.
        waiting: defaultdict[Spot, list[int]] = defaultdict(list)
        ready = deque(range(len(threads)))
        while ready:
            thread = ready.popleft()
            clocks = self._clocks[thread]
            for event in threads[thread][len(clocks) :]:
                spot = Spot(thread, len(clocks))
                before = [givers[token] for token in event.takes if givers.get(token, spot) != spot]
                missing = next((giver for giver in before if not self._has_clock(giver)), None)
                if missing is not None:
                    waiting[missing].append(thread)
                    break
                clocks.append(self._clock(thread, before))
                ready.extend(waiting.pop(spot, ()))
        # What is left waits for itself, or for something that does.
        settled = [len(clocks) for clocks in self._clocks]
        for thread, events in enumerate(threads):
            for event in events[settled[thread] :]:
                before = [givers[token] for token in event.takes if token in givers]
                known = [giver for giver in before if giver.event < settled[giver.thread]]
                self._clocks[thread].append(self._clock(thread, known))

    def is_ordered(self, event: Event) -> bool:
        """Whether an event gives or takes a token that orders something."""
        return not self._tokens.isdisjoint((*event.gives, *event.takes))

    def _has_clock(self, spot: Spot) -> bool:
        return spot.event < len(self._clocks[spot.thread])

    def _clock(self, thread: int, givers: list[Spot]) -> tuple[int, ...]:
        """How many events of each thread come before the next one of a thread."""
        own = self._clocks[thread]
        clock = own[-1] if own else (0,) * len(self._clocks)
        if not givers:
            return clock
        merged = list(clock)
        for giver in givers:
            theirs = self._clocks[giver.thread][giver.event]
            merged = [max(pair) for pair in zip(merged, theirs, strict=True)]
            merged[giver.thread] = max(merged[giver.thread], giver.event + 1)
        return tuple(merged)

    def before(self, one: Spot, other: Spot) -> bool:
        """Whether one event comes before another on every schedule."""
        if one.thread == other.thread:
            return one.event < other.event
        return one.event < self._clocks[other.thread][other.event][one.thread]


def _givers(threads: Sequence[Events]) -> dict[str, Spot]:
    """The giver of each token that has exactly one."""
    found: defaultdict[str, set[Spot]] = defaultdict(set)
    for thread, events in enumerate(threads):
        for place, event in enumerate(events):
            for token in event.gives:
                found[token].add(Spot(thread, place))
    return {token: spots.pop() for token, spots in found.items() if len(spots) == 1}
