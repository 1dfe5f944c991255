"""A schedule: which threads are held, and before which points. Pure.

A hold is written ``1@open:best.ckpt#1``: the thread that runs the test of rank 1, before it passes
the point ``open:best.ckpt`` for the first time. ``1.2@...`` is the second thread that the test of
rank 1 has started. Several holds are joined by ``+``; one ends at a time, in the order written.
"""

from __future__ import annotations

import re
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote

from pytest_ddp.extensions.explore.run_events import RankThread

_HOLD = re.compile(r"(?P<rank>\d+)(?:\.(?P<thread>\d+))?@(?P<point>.+)#(?P<number>\d+)", re.ASCII)
_ESCAPED = "%+'\""
"""Besides what cannot be printed: our own marks, and quotes, since a schedule is given in quotes on
command lines."""


class Hold(NamedTuple):
    """A thread is held before it passes a point, until all others wait, have ended, or poll."""

    thread: RankThread
    point: str
    number: int = 1
    """The time at which the thread passes a point of this name, from 1 for the first."""


Schedule: TypeAlias = tuple[Hold, ...]
"""The holds of one run; empty for a plain run."""


def schedule_text(schedule: Schedule) -> str:
    """The schedule as users give it; :func:`parse_schedule` reads it."""
    return "+".join(
        f"{thread_text(hold.thread)}@{_escaped(hold.point)}#{hold.number}" for hold in schedule
    )


def thread_text(thread: RankThread) -> str:
    """The thread as schedules write it: ``1``, or ``1.2`` for one that the test has started."""
    return f"{thread.rank}.{thread.thread}" if thread.thread else f"{thread.rank}"


def parse_schedule(text: str) -> Schedule:
    """The schedule that a text describes.

    Raises:
        ValueError: with words for a user, if the text describes none.
    """
    schedule = tuple(_hold(part.strip()) for part in text.split("+"))
    for place, hold in enumerate(schedule):
        if hold in schedule[:place]:
            raise ValueError(f"has the hold {schedule_text((hold,))!r} twice")
    return schedule


def _hold(text: str) -> Hold:
    if not text:
        raise ValueError("names no hold, or has a '+' too many")
    match = _HOLD.fullmatch(text)
    if not match:
        raise ValueError(
            f"has {text!r}, which is no hold; one is written RANK@POINT#NUMBER, such as "
            "'1@open:best.ckpt#1', or RANK.THREAD@POINT#NUMBER"
        )
    number = int(match["number"])
    if not number:
        raise ValueError(f"has {text!r}; a thread passes a point for the first time at '#1'")
    try:
        point = unquote(match["point"], errors="surrogatepass")
    except UnicodeDecodeError:
        raise ValueError(f"has {text!r}, in which an escape such as '%2B' is wrong") from None
    return Hold(RankThread(int(match["rank"]), int(match["thread"] or 0)), point, number)


def _escaped(point: str) -> str:
    return "".join(
        character
        if character.isprintable() and character not in _ESCAPED
        else "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
        for character in point
    )
