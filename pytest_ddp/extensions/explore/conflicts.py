"""Which points of a run conflict: they use one thing, one of them changes it, nothing orders them.

Pure. These kinds of things have rules of their own:

- A file is what it contains. Opening it reads or changes that.
- An entry is that a path exists, and what it stands for. To make, replace, link, rename or remove
  something changes its entry; to open, stat or test it reads the entry. Whoever uses an entry also
  reads those of the folders above it, which records need not say.
- A folder is which entries it has; the topmost is ``.``. Making and removing entries changes it,
  listing it reads it (as does removing it, which succeeds if it has none). Two changes are no
  conflict, since they are of two entries, or a conflict of one entry.
- A mailbox is the messages to a rank. Which of two comes first matters only to a receive from any
  source (``FROM_ANY``); without one, nothing in it conflicts. With one, two sends conflict and two
  receives do, but not a send and a receive, since messages wait for receives.

A key, a lock and a point of the user's own have none. What waits for a thing, as ``store.get`` does
for a key, takes its token in its next event, and uses it then.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from pytest_ddp.extensions.explore.order import Order, Spot
from pytest_ddp.extensions.explore.ranks.accesses import FROM_ANY, Access, Thing, ThingKind
from pytest_ddp.extensions.explore.run_events import Event, Events

THROUGH = "uses"
"""The verb of reading the entry of a folder on the way to something below it."""

_KEPT_REPEATS = 2
"""How many equal uses by one thread without communication between them, as in a poll, are kept:
others can come before the first, or between two. How many there are is chance."""

Kind: TypeAlias = tuple[str, str]
"""The lines of a conflict's two points, in alphabetical order."""


class Conflict(NamedTuple):
    """Two uses of a thing that may come in either order."""

    first: Event
    """The event that came first."""
    second: Event
    use: Access
    """What the first event does with the thing."""
    other_use: Access
    """What the second event does with the same thing."""
    held: Event
    """The point at which holding the first one's thread lets the second come before: the first
    itself, or the last point before it."""

    @property
    def is_direct(self) -> bool:
        """Whether neither only passes a folder that the other one makes or removes: where each
        rank makes a folder unless it exists, all that they do in it conflicts with that."""
        return THROUGH not in (self.use.verb, self.other_use.verb)

    @property
    def kind(self) -> Kind:
        """The lines of both uses, which the same conflict has wherever else it comes."""
        sites = sorted(event.site or event.point for event in (self.first, self.second))
        return sites[0], sites[1]


def conflicts(threads: Sequence[Events]) -> list[Conflict]:
    """All conflicts of a run, in the order in which their first uses came.

    Of several uses on one line of a thread that one use conflicts with, the next one stands for
    all. Two events that conflict in several things do so in the one that both name earlier.
    """
    threads = sorted((events for events in threads if events), key=lambda events: events[0].thread)
    order = Order(threads)
    found: dict[tuple[_Moment, _Moment], tuple[int, _Use, _Use]] = {}
    for lines in _things(threads, order):
        for line in lines.values():
            for use in line:
                for other in _next_in_conflict(use, lines, order):
                    pair = use.moment, other.moment
                    named = use.place + other.place
                    if pair not in found or named < found[pair][0]:
                        found[pair] = named, use, other
    return [
        Conflict(use.event, other.event, use.access, other.access, held)
        for _, (_, use, other) in sorted(found.items(), key=lambda item: item[0])
        if (held := _held(threads[use.spot.thread], use.spot, other.spot, order))
    ]


_Moment: TypeAlias = tuple[float, Spot]


class _Use(NamedTuple):
    """An access of an event."""

    event: Event
    access: Access
    place: int
    """Which of the event's accesses it is."""
    spot: Spot
    moment: _Moment


_Line: TypeAlias = tuple[int, str, bool, bool]
"""What uses of a thing that are alike have in common: a thread, a line of it, whether it changes
the thing, and whether it receives from any."""


def _things(threads: Sequence[Events], order: Order) -> Iterator[dict[_Line, list[_Use]]]:
    """The uses of each thing that can conflict, by lines."""
    things: defaultdict[Thing, defaultdict[_Line, list[_Use]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for thread, events in enumerate(threads):
        repeats: Counter[tuple[Access, str, str, int]] = Counter()
        communications = 0
        for number, event in enumerate(events):
            communications += order.is_ordered(event)
            for place, access in enumerate(_accesses(event)):
                repeat = access, event.point, event.site, communications
                repeats[repeat] += 1
                if repeats[repeat] <= _KEPT_REPEATS:
                    spot = Spot(thread, number + _waits_for(events, number, access))
                    from_any = access.verb == FROM_ANY
                    line = thread, event.site or event.point, access.changes, from_any
                    use = _Use(event, access, place, spot, (event.at, spot))
                    things[access.thing][line].append(use)
    for thing, lines in things.items():
        if thing.kind is not ThingKind.MAILBOX or any(from_any for *_, from_any in lines):
            yield lines


def _waits_for(events: Events, number: int, access: Access) -> bool:
    """Whether an event's use of a thing ends with the next event, which takes the thing's token:
    ``store.get`` of a key reads it when it was set."""
    return not access.changes and any(
        access.thing.token in after.takes for after in events[number + 1 : number + 2]
    )


def _accesses(event: Event) -> Iterator[Access]:
    """What an event uses, including the folders above its entries."""
    yield from event.accesses
    said = {access.thing for access in event.accesses}
    for access in event.accesses:
        kind, path = access.thing
        while kind is ThingKind.ENTRY and (path := path.rpartition("/")[0]):
            above = Thing(ThingKind.ENTRY, path)
            if above not in said:
                said.add(above)
                yield Access(above, changes=False, verb=THROUGH)


def _next_in_conflict(use: _Use, lines: dict[_Line, list[_Use]], order: Order) -> Iterator[_Use]:
    """Yield the next use on each line with which a use conflicts."""
    for (thread, *_), line in lines.items():
        if thread == use.spot.thread or not _conflict(use.access, line[0].access):
            continue
        for other in line[bisect(line, use.moment, key=attrgetter("moment")) :]:
            # Clocks of two ranks may differ a little, and then the later one has come before.
            if not order.before(other.spot, use.spot):
                # If it comes after this use on every schedule, so do those after it.
                if not order.before(use.spot, other.spot):
                    yield other
                break


def _conflict(one: Access, other: Access) -> bool:
    """Whether two uses of a thing conflict if nothing orders them."""
    match one.thing.kind:
        case ThingKind.FOLDER:
            return one.changes != other.changes
        case ThingKind.MAILBOX:
            return (one.verb == FROM_ANY) == (other.verb == FROM_ANY)
        case _:
            return one.changes or other.changes


def _held(events: Events, first: Spot, second: Spot, order: Order) -> Event | None:
    """The point at which a thread can be held until the second use has come; None without one."""
    for number in range(first.event, -1, -1):
        if events[number].point:
            before = order.before(Spot(first.thread, number), second)
            return None if before else events[number]
    return None
