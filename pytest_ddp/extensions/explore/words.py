"""What users read about schedules, in lines of at most 100 columns. Pure."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence

from pytest_ddp.extensions.explore.conflicts import FROM_ANY, Conflict
from pytest_ddp.extensions.explore.run_events import BEGIN, Access, Event, RankThread
from pytest_ddp.extensions.explore.schedule import Hold, Schedule, schedule_text

_WIDTH = 100
_LONGEST_NAME = 40
"""Columns; of a longer name its end is shown."""


def heading(
    schedule: Schedule, sites: Mapping[Hold, str], conflict: Conflict | None, others: str
) -> str:
    """The lines above the verdict of a run that has failed under a schedule.

    Args:
        schedule: of the run.
        sites: the line of each hold's point, as far as known.
        conflict: what the schedule has turned around, if that is known.
        others: how other runs ended, as :func:`other_runs` writes it; empty where there are none.
    """
    passes = "; passes otherwise" if others else ""
    if len(schedule) == 1:
        lines = [f"fails when {_late(schedule[0], sites)}{passes}"]
    else:
        late = " and then ".join(_thread(hold.thread) for hold in schedule)
        lines = [f"fails when {late} are late{passes}"]
        for number, hold in enumerate(schedule, 1):
            lines += _wrapped(f"{number}. {_late(hold, sites)}")
    if others:
        lines += _wrapped(f"({others})")
    if conflict:
        lines += _wrapped(conflict_text(conflict))
    return "\n".join(lines)


def other_runs(number: int, most: int, plain: int) -> str:
    """How the runs before a failure ended.

    Args:
        number: of the run, from 1.
        most: how many runs there may be.
        plain: how many runs without a hold have passed.
    """
    return f"schedule {number} of {most}; {_counted(plain, 'plain run')} passed"


def replay_line(schedule: Schedule) -> str:
    """How a user runs the test with this schedule again."""
    return f"Replay: --ddp-schedule='{schedule_text(schedule)}'"


def flaky_heading(failed: int, runs: int) -> str:
    """The line above the verdict of a test that fails now and then without a hold."""
    return f"fails in {failed} of {_counted(runs, 'run')} without a hold"


def not_reached(hold: Hold, passed: int) -> str:
    """Why a test with ``--ddp-schedule`` fails of which a thread did not come to a hold.

    Args:
        hold: the one that did not begin.
        passed: how often the thread has passed points of this name.
    """
    thread, point = _thread(hold.thread), point_text(hold.point)
    if hold.point == BEGIN:
        reason = f"{thread} did not begin, so it was not held there"
    elif passed:
        reason = (
            f"{thread} passed {point} {_counted(passed, 'time')}, so it was not held before the "
            f"{_ordinal(hold.number)}"
        )
    else:
        reason = f"{thread} did not come to {point}, so it was not held there"
    return f"{reason}\n\nThe schedule is of a test or code that has changed, or another test's."


def point_text(point: str) -> str:
    """A point as a reader of Python writes it: ``open(best.ckpt)`` of ``open:best.ckpt``."""
    call, colon, name = point.partition(":")
    return f"{call}({_shortened(name)})" if colon else _shortened(point)


def held_phase(hold: Hold) -> str:
    """What a held thread does, as hang texts and traces show it."""
    return "held at its begin" if hold.point == BEGIN else f"held before {point_text(hold.point)}"


def conflict_text(conflict: Conflict) -> str:
    """What two threads do with one thing."""
    first, second = conflict.first, conflict.second
    return (
        f"{_does(first, conflict.use, _thing(conflict.use))}; "
        f"{_does(second, conflict.other_use, _thing_again(conflict))}; nothing orders the two"
    )


def explored(kinds: int, open_kinds: int, runs: int) -> str:
    """What ``-v`` says beside a green test.

    Args:
        kinds: the kinds of conflicts that were found.
        open_kinds: those that have occurrences which were not tried.
        runs: of the test.
    """
    found = _counted(kinds, "conflict") if kinds else "no conflict"
    tried = ", all orders" if not open_kinds else f", all orders of {kinds - open_kinds}"
    return f"explored: {found}{tried if kinds else ''}, {_counted(runs, 'run')}"


def undecided(schedule: Schedule, first_line: str) -> str:
    """Why a failure is no finding: a hold ended by its bound, and then a limit of the user's."""
    lines = _wrapped(
        f"undecided with {schedule_text(schedule)!r}: a hold ended by its bound, and a limit of "
        f"the test's own expired: {first_line}",
        indent="",
    )
    return "\n".join(lines)


def not_explored(reasons: Sequence[str]) -> str:
    """How many tests were not explored, and why.

    Args:
        reasons: one for each of the tests, such as ``one rank``.
    """
    counts = Counter(reasons)
    why = ", ".join(f"{count}: {reason}" for reason, count in counts.most_common())
    return "\n".join(_wrapped(f"{_counted(len(reasons), 'test')} not explored ({why})", indent=""))


def bound_ended(holds: int, ended: int) -> str:
    """How many holds ended by time."""
    return (
        f"{ended} of {_counted(holds, 'hold')} ended by the bound, not by the other threads' state"
    )


def _late(hold: Hold, sites: Mapping[Hold, str]) -> str:
    thread = _thread(hold.thread)
    if hold.point == BEGIN:
        return f"{thread} begins late"
    times = f"its {_ordinal(hold.number)} " if hold.number > 1 else ""
    site = f" at {sites[hold]}" if sites.get(hold) else ""
    return f"{thread} is late before {times}{point_text(hold.point)}{site}"


def _thread(thread: RankThread) -> str:
    if thread.thread:
        return f"thread {thread.thread} of rank {thread.rank}"
    return f"rank {thread.rank}"


def _does(event: Event, use: Access, thing: str) -> str:
    site = f" at {event.site}" if event.site else ""
    return f"{_thread(event.thread)} {use.verb} {thing}{site}".replace("  ", " ")


def _thing(use: Access) -> str:
    kind, _, name = use.thing.partition(" ")
    if use.verb == FROM_ANY:
        return "rank"
    return _shortened(name) if kind in ("file", "entry", "folder", "mailbox") else use.thing


def _thing_again(conflict: Conflict) -> str:
    if FROM_ANY in (conflict.use.verb, conflict.other_use.verb):
        return _thing(conflict.other_use)
    return "it"


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"...{name[3 - _LONGEST_NAME :]}"


def _wrapped(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{({1: 'st', 2: 'nd', 3: 'rd'}).get(number % 10, 'th')}"
