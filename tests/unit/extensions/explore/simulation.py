"""Programs of several threads that run in simulated time, with holds that end by state.

A thread is a generator: it yields a :class:`Point` before it does something that others can see, a
:class:`Wait`, or seconds to sleep. What it does between two yields happens at once. So whether a
program fails depends on its schedule alone, and each run is the same again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from pytest_ddp.extensions.explore.ranks.accesses import FROM_ANY, Access
from pytest_ddp.extensions.explore.run_events import BEGIN, Event, RankThread, Threads
from pytest_ddp.extensions.explore.schedule import Hold, Schedule
from pytest_ddp.extensions.explore.trials import Exploration
from tests.unit.extensions.explore.programs import changes, reads


class Point(NamedTuple):
    name: str
    site: str = ""
    uses: tuple[Access, ...] = ()
    gives: tuple[str, ...] = ()


class Wait(NamedTuple):
    until: Callable[[], bool]
    takes: tuple[str, ...] = ()


Thread: TypeAlias = Generator[Point | Wait | float, None, None]


@dataclass
class World:
    """What threads of one run share."""

    files: dict[str, str] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    mailboxes: dict[int, deque[int]] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)

    # What programs are made of; `line` is where the program does it.

    def exists(self, name: str, line: str) -> Generator[Point, None, bool]:
        yield Point(f"stat:{name}", line, (reads(name, "entry", "looks for"),))
        return name in self.files

    def reads(self, name: str, line: str) -> Generator[Point, None, str]:
        uses = reads(name, "entry"), reads(name)
        yield Point(f"open:{name}", line, uses)
        return self.files[name]

    def writes(self, name: str, text: str, line: str) -> Generator[Point, None, None]:
        uses = changes(name), changes(name, "entry", "makes")
        yield Point(f"open:{name}", line, uses)
        self.files[name] = text

    def appends(self, name: str, text: str, line: str) -> Generator[Point, None, None]:
        yield Point(f"open:{name}", line, (changes(name, verb="appends to"),))
        self.files[name] = self.files.get(name, "") + text

    def makes(self, name: str, line: str) -> Generator[Point, None, None]:
        yield Point(f"mkdir:{name}", line, (changes(name, "entry", "makes"),))
        assert name not in self.files
        self.files[name] = ""

    def makes_again(self, name: str, line: str) -> Generator[Point, None, None]:
        yield Point(f"mkdir:{name}", line, (changes(name, "entry", "makes"),))
        self.files[name] = ""

    def removes(self, name: str, line: str) -> Generator[Point, None, None]:
        yield Point(f"remove:{name}", line, (changes(name, "entry", "removes"),))
        del self.files[name]

    def barrier(self, rank: int, number: int, size: int = 2) -> Generator[Point | Wait, None, None]:
        tokens = [f"barrier {number} {member}" for member in range(size)]
        yield Point("barrier", gives=(tokens[rank],))
        self.given.add(tokens[rank])
        yield Wait(lambda: self.given.issuperset(tokens), tuple(tokens))

    def sends(self, rank: int, to: int, line: str) -> Generator[Point, None, None]:
        yield Point("send", line, (changes(f"rank {to}", "mailbox", "sends to"),))
        self.mailboxes.setdefault(to, deque()).append(rank)

    def receives(self, rank: int, line: str) -> Generator[Point | Wait, None, int]:
        yield Point("recv", line, (changes(f"rank {rank}", "mailbox", FROM_ANY),))
        yield Wait(lambda: bool(self.mailboxes.get(rank)))
        return self.mailboxes[rank].popleft()

    def adds(self, key: str, line: str) -> Generator[Point, None, int]:
        yield Point(f"add:{key}", line, (changes(key, "key", "adds to"),))
        self.keys[key] = self.keys.get(key, 0) + 1
        return self.keys[key]


Program: TypeAlias = Callable[[World], Mapping[RankThread | int, Thread]]


class Ran(NamedTuple):
    threads: Threads
    failed: bool
    reached: tuple[Hold, ...]
    """The holds that began."""
    world: World


def run(program: Program, schedule: Schedule = ()) -> Ran:
    """Run a program until each thread has ended; fail if one raises, or all wait."""
    world = World()
    threads = {
        RankThread(key) if isinstance(key, int) else key: thread
        for key, thread in program(world).items()
    }
    left = dict.fromkeys(threads, 0.0)  # when each goes on
    asked: dict[RankThread, Point | Wait] = {key: Point(BEGIN) for key in threads}
    counts: Counter[tuple[RankThread, str]] = Counter()
    events: dict[RankThread, list[Event]] = {key: [] for key in threads}
    held: dict[Hold, RankThread] = {}
    reached: list[Hold] = []
    now, failed = 0.0, False
    while left:
        ready = [
            key
            for key in left
            if key not in held.values()
            and not (isinstance(wait := asked.get(key), Wait) and not wait.until())
        ]
        if ready:
            key = min(ready, key=lambda each: (left[each], each))
            now = max(now, left[key]) + 1e-6
            request = asked.get(key)
            if isinstance(request, Point):
                counts[key, request.name] += 1
                hold = Hold(key, request.name, counts[key, request.name])
                if hold in schedule and hold not in reached:
                    held[hold] = key
                    reached.append(hold)
                    continue
        elif held:
            hold = min(held, key=schedule.index)
            key = held.pop(hold)
            request = asked[key]
            now += 1e-3
        else:
            return Ran(_recorded(events), True, tuple(reached), world)
        if isinstance(request, Point):
            number = counts[key, request.name]
            events[key].append(
                Event(key, now, request.name, number, request.site, request.uses, request.gives)
            )
        elif isinstance(request, Wait):
            events[key].append(Event(key, now, takes=request.takes))
        asked.pop(key, None)
        left[key] = now
        try:
            answer = next(threads[key])
        except StopIteration:
            del left[key]
        except (AssertionError, KeyError):
            failed = True
            del left[key]
        else:
            if isinstance(answer, float):
                left[key] = now + answer
            else:
                asked[key] = answer
    return Ran(_recorded(events), failed, tuple(reached), world)


def _recorded(events: Mapping[RankThread, Sequence[Event]]) -> Threads:
    return tuple(map(tuple, events.values()))


class Explored(NamedTuple):
    schedules: list[Schedule]
    """The schedules that were tried; the last one has failed, if one did."""
    failed: bool
    unreached: list[Schedule]
    exploration: Exploration


def explore(program: Program, most: int = 20) -> Explored:
    """Two plain runs, which must pass, and then the schedules that are chosen, until one fails."""
    exploration = Exploration()
    tried: list[Schedule] = []
    unreached: list[Schedule] = []
    for number in range(most):
        schedule = () if number < 2 else exploration.next_schedule()
        if schedule is None:
            break
        ran = run(program, schedule)
        assert not (number < 2 and ran.failed)
        exploration.ran(schedule, ran.threads)
        if number >= 2:
            tried.append(schedule)
        if set(ran.reached) != set(schedule):
            unreached.append(schedule)
        if ran.failed:
            return Explored(tried, True, unreached, exploration)
    return Explored(tried, False, unreached, exploration)
