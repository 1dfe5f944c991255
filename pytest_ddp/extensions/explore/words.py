"""What users read about schedules, in lines of at most 100 columns. Pure."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pytest_ddp.extensions.explore.conflicts import Conflict
from pytest_ddp.extensions.explore.ranks.accesses import FROM_ANY, Access, ThingKind
from pytest_ddp.extensions.explore.run_events import BEGIN, Event, RankThread
from pytest_ddp.extensions.explore.schedule import Hold, Schedule, schedule_text

_WIDTH = 100
_LONGEST_NAME = 40
"""Columns of the longest name that is shown whole; of a longer one its end is shown."""
_SHORTER_NAME = 20
"""Columns of the longest name where the first line would be too long otherwise."""


def heading(
    schedule: Schedule, sites: Mapping[Hold, str], turned: Mapping[Hold, Conflict], others: str
) -> str:
    """The lines above the verdict of a run that has failed under a schedule.

    Args:
        schedule: of the run.
        sites: the line of each hold's point, as far as known.
        turned: the conflict that each hold has turned around, as far as known.
        others: how other runs ended, as :func:`other_runs` writes it; empty where there are none.
    """
    passes = "; passes otherwise" if others else ""
    clauses = {hold: conflict_clauses(conflict) for hold, conflict in turned.items()}
    if len(schedule) == 1:
        lines = [_first_line(schedule[0], sites, passes)]
        lines += _wrapped(f"({others})") if others else []
        lines += _sentence(clauses.get(schedule[0], ()), "  ")
    else:
        threads = list(dict.fromkeys(_thread(hold.thread) for hold in schedule))
        are = "are late" if len(threads) > 1 else f"is late {len(schedule)} times"
        lines = [f"fails when {' and then '.join(threads)} {are}{passes}"]
        for number, hold in enumerate(schedule, 1):
            lines += _wrapped(f"{number}. {_late(hold, sites)}")
            lines += _sentence(clauses.get(hold, ()), "     ")
        lines += _wrapped(f"({others})") if others else []
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
    return (
        f"{reason}\n\nIf the test or its code has changed since, explore it again, with "
        "--ddp-explore=20."
    )


def point_text(point: str, longest: int = _LONGEST_NAME) -> str:
    """A point as a reader of Python writes it: ``open(best.ckpt)`` of ``open:best.ckpt``."""
    call, colon, name = point.partition(":")
    if colon:
        return f"{call}({_shortened(name, longest)})"
    return _shortened(point, longest)


def held_phase(hold: Hold) -> str:
    """What a held thread does, as hang texts and traces show it."""
    return "held at its begin" if hold.point == BEGIN else f"held before {point_text(hold.point)}"


def conflict_clauses(conflict: Conflict) -> tuple[str, ...]:
    """What two threads do with one thing, as the clauses of a sentence."""
    use, other_use = conflict.use, conflict.other_use
    again = _thing(other_use) if other_use.thing.kind is ThingKind.MAILBOX else "it"
    return (
        _does(conflict.first, use, _thing(use)),
        _does(conflict.second, other_use, again),
        "nothing orders the two",
    )


def explored(kinds: int, open_kinds: int, undecided: int, runs: int) -> str:
    """What ``-v`` shows beside a green test.

    Args:
        kinds: the kinds of conflicts that were found.
        open_kinds: those that have occurrences which were not tried.
        undecided: failures that were no findings.
        runs: of the test.
    """
    said = [_counted(kinds, "conflict") if kinds else "no conflict"]
    if kinds and open_kinds < kinds:
        said.append(f"all orders of {kinds - open_kinds} of them" if open_kinds else "all orders")
    elif kinds:
        said.append("not all orders")
    if undecided:
        said.append(f"{undecided} undecided")
    return f"explored: {', '.join([*said, _counted(runs, 'run')])}"


def undecided(test: str, schedule: Schedule, message: str, *, is_timeout: bool) -> str:
    """Which failure is no finding, and why: a limit may have expired as a hold was so long.

    Args:
        test: its node id.
        schedule: of the run.
        message: the first line of the failure.
        is_timeout: whether the limit is the test's timeout, and no bound ended the hold.
    """
    if is_timeout:
        why = "holds took much of its time, so that may be no race"
    else:
        why = "a bound ended a hold before, so a limit of the test may have expired"
    lines = [f"undecided: {test}", *_wrapped(message), *_wrapped(f"({why})")]
    return "\n".join([*lines, f"  {replay_line(schedule)}"])


def not_explored(reasons: Sequence[str]) -> str:
    """How many tests were not explored, and why.

    Args:
        reasons: one for each of the tests, such as ``one rank``.
    """
    counts = Counter(reasons).most_common()
    why = ", ".join(f"{reason} ({count})" if counts[1:] else reason for reason, count in counts)
    text = f"{_counted(len(reasons), 'test')} not explored: {why}"
    return "\n".join(_wrapped(text, indent=""))


def session(tests: int, holds: int, ended: int) -> str:
    """How many tests were explored, and how many holds did not end because all others waited.

    Args:
        tests: that were explored; 0 if a schedule was given.
        holds: of all their runs.
        ended: by a bound.
    """
    text = _counted(holds, "hold")
    if tests:
        text = f"{_counted(tests, 'test')} explored with {text}"
    if not ended:
        return text
    return f"{text}, {ended} of them ended by a bound, not because all others waited"


def _first_line(hold: Hold, sites: Mapping[Hold, str], passes: str) -> str:
    """The first line of a failure, which the short summary shows, too. It is not too long if names
    that are a little shorter make it fit."""
    brief = {place: site.rpartition("/")[2] for place, site in sites.items()}
    for known, longest in ((sites, _LONGEST_NAME), (brief, _LONGEST_NAME), (brief, _SHORTER_NAME)):
        line = f"fails when {_late(hold, known, longest)}{passes}"
        if len(line) <= _WIDTH:
            break
    return line


def _late(hold: Hold, sites: Mapping[Hold, str], longest: int = _LONGEST_NAME) -> str:
    thread, site = _thread(hold.thread), f" at {sites[hold]}" if sites.get(hold) else ""
    if hold.point == BEGIN:
        return f"{thread}, started{site}, begins late" if site else f"{thread} begins late"
    times = f"its {_ordinal(hold.number)} " if hold.number > 1 else ""
    return f"{thread} is late before {times}{point_text(hold.point, longest)}{site}"


def _thread(thread: RankThread) -> str:
    if thread.thread:
        return f"thread {thread.thread} of rank {thread.rank}"
    return f"rank {thread.rank}"


def _does(event: Event, use: Access, thing: str) -> str:
    site = f" at {event.site}" if event.site else ""
    # A folder is changed by what makes or removes something in it.
    entry = "an entry of " if use.changes and use.thing.kind is ThingKind.FOLDER else ""
    return f"{_thread(event.thread)} {use.verb} {entry}{thing}{site}"


def _thing(use: Access) -> str:
    kind, name = use.thing
    match kind:
        case ThingKind.MAILBOX:
            return "rank" if use.verb == FROM_ANY else name
        case ThingKind.FOLDER if name == ".":
            return "the folder ."
        case ThingKind.FILE | ThingKind.ENTRY | ThingKind.FOLDER:
            return _shortened(name)
        case _:
            return f"{kind} {_shortened(name)}"


def _shortened(name: str, longest: int = _LONGEST_NAME) -> str:
    return name if len(name) <= longest else f"...{name[3 - longest :]}"


def _sentence(clauses: Iterable[str], indent: str) -> list[str]:
    """The lines of a sentence, which end where a clause does."""
    lines = [""]
    for clause in clauses:
        if lines[-1] and len(indent) + len(lines[-1]) + len(clause) > _WIDTH - 2:
            lines[-1] += ";"
            lines.append("")
        lines[-1] += f"; {clause}" if lines[-1] else clause
    return [part for line in lines for part in _wrapped(line, indent)]


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
