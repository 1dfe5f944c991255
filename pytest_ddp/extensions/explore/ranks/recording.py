"""What the threads of this rank's test do, as events; and the points at which one is held."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from sys import _getframe
from types import TracebackType
from typing import Any, TypeAlias

from pytest_ddp.extensions.explore.ranks.accesses import Access
from pytest_ddp.extensions.explore.ranks.board import Board
from pytest_ddp.rank.operations.origins import user_frame
from pytest_ddp.system.stdlib import os, threading, time, traceback

KEPT = 20_000
"""Events of a thread that are kept; a poll has few."""
_CYCLE = 6
"""Points that a poll passes in one round, at most."""
_ROUNDS = 3
"""Equal rounds after which the next one is no progress."""

OnPoint: TypeAlias = Callable[[int, str, int, Callable[[], None]], None]
"""Is called with thread, name and number of a point that is about to be passed, and with what
brings the thread to where a hold is to find it."""


class ThreadEvents:
    """What one thread does."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.events: list[Any] = []
        """Rows of an event: time, point, number, site, accesses, gives, takes."""
        self.counts: Counter[str] = Counter()
        self.is_quiet = False
        """Whether the thread is in code of ours, whose points are nobody's."""
        self._last: deque[tuple[str, str]] = deque(maxlen=_CYCLE * _ROUNDS)
        """Names and sites of the thread's last points."""
        self.moves = 0
        """Points that the thread has passed, without new rounds of a poll."""
        self.again = 0
        """Points of new rounds of a poll since the last other point."""

    def passes(self, name: str, site: str, *, changes: bool) -> bool:
        """Note a point; returns whether a replay counts it, as each run passes it as often.

        Args:
            name: of the point.
            site: its line.
            changes: whether others may see a difference.
        """
        self._last.append((name, site))
        is_again = bool(self._round())
        self.moves += not is_again
        self.again = self.again + 1 if is_again else 0
        return changes or not is_again

    def communicates(self) -> None:
        """The thread passes a point of communication, which no poll does."""
        self._last.clear()
        self.moves += 1
        self.again = 0

    def _round(self) -> int:
        """How many points a round of the last ones has; 0 if they are no rounds."""
        last = [*self._last]
        for length in range(1, _CYCLE + 1):
            if len(last) < length * _ROUNDS:
                return 0
            rounds = last[-length * _ROUNDS :]
            if rounds == rounds[:length] * _ROUNDS:
                return length
        return 0


class Guarded:
    """A block of ours in a call of the user's: what goes wrong in it is reported, and that call
    goes on."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        with contextlib.suppress(Exception):
            text = "".join(traceback.format_exception(error)).rstrip()
            self._report(f"a point of this test is not recorded:\n{text}")
        return True


class Recording:
    """The events of one run on this rank, from its begin until :meth:`end`."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        root: str,
        board: Board | None,
        report: Callable[[str], None],
    ) -> None:
        """
        Args:
            rank: of the default process group.
            world_size: number of ranks.
            root: the session's root folder, to which the files of lines are relative.
            board: shows the others how far the threads are; None where nobody waits for that.
            report: takes what goes wrong here.
        """
        self.rank = rank
        self.world_size = world_size
        self.guarded = Guarded(report)
        self.is_on = False
        self.on_point: OnPoint = lambda thread, name, number, arrive: None
        """Holds the thread, if the schedule wants that."""
        self.exchanges = 0
        """Operations of the ``ddp`` fixture that the rank has begun."""
        self.threads: list[ThreadEvents] = []
        self._root = root
        self._board = board
        self._numbers = itertools.count(1)
        self._own = threading.local()
        self._by_ident: dict[int, ThreadEvents] = {}
        self._pid = os.getpid()

    # ------------------------------------------------------------------ threads

    def new_number(self) -> int:
        """The number of a thread that is about to be started."""
        return next(self._numbers)

    def begin_thread(self, number: int) -> None:
        """Record the calling thread under this number from now on."""
        events = ThreadEvents(number)
        self.threads.append(events)
        self._by_ident[threading.get_ident()] = self._own.events = events

    def end_thread(self) -> None:
        self._by_ident.pop(threading.get_ident(), None)
        self._own.events = None

    def own(self) -> ThreadEvents | None:
        """The calling thread's events; None if its points are not recorded now."""
        events: ThreadEvents | None = getattr(self._own, "events", None)
        if events is None or events.is_quiet or not self.is_on or os.getpid() != self._pid:
            return None
        return events

    def of(self, ident: int) -> ThreadEvents | None:
        """The events of a thread, by its identifier; None for one that the test has not started."""
        return self._by_ident.get(ident)

    # ------------------------------------------------------------------ events

    def point(
        self,
        name: str,
        uses: Callable[[], Iterable[Access]] | Sequence[Access] = (),
        gives: Callable[[], Sequence[str]] | Sequence[str] = (),
        takes: Sequence[str] = (),
        *,
        communicates: bool = False,
        site: str | None = None,
        arrive: Callable[[], None] = lambda: None,
    ) -> None:
        """The calling thread passes a point, after it was held there if the schedule wants that.

        Args:
            name: of the point.
            uses: what the thread uses then; if a function, it is called after a hold.
            gives: tokens; the same.
            takes: tokens.
            communicates: whether it is a collective, a message or an operation of the fixture.
            site: the line of the test that does it, or empty; None for the calling one.
            arrive: is called before a hold there, and not without one.
        """
        events = self.own()
        if events is None:
            return
        events.is_quiet = True
        try:
            with self.guarded:
                line = self.site() if site is None else site
                self._pass(events, name, line, uses, gives, takes, communicates, arrive)
        finally:
            events.is_quiet = False

    def _pass(
        self,
        events: ThreadEvents,
        name: str,
        site: str,
        uses: Callable[[], Iterable[Access]] | Sequence[Access],
        gives: Callable[[], Sequence[str]] | Sequence[str],
        takes: Sequence[str],
        communicates: bool,
        arrive: Callable[[], None],
    ) -> None:
        events.counts[name] += 1
        number = events.counts[name]
        self.on_point(events.number, name, number, arrive)
        used = [*(uses() if callable(uses) else uses)]
        given = gives() if callable(gives) else gives
        if communicates:
            events.communicates()
            counts = True
        else:
            counts = events.passes(name, site, changes=any(use.changes for use in used))
        if counts and self._board is not None:
            self._board.passed(events.number)
        self._add(events, name, number, site, used, given, takes)

    def note(self, gives: Sequence[str] = (), takes: Sequence[str] = ()) -> None:
        """The calling thread gives or takes tokens where it is held at no time."""
        if (events := self.own()) is not None:
            self._add(events, "", 0, "", (), gives, takes)

    def _add(self, events: ThreadEvents, *row: Any) -> None:
        rows = events.events
        if len(rows) < KEPT:
            rows.append((time.monotonic(), *row))

    def site(self) -> str:
        """The calling line of the test; empty if there is none."""
        frame = user_frame(_getframe(1))
        if frame is None:
            return ""
        file = frame.f_code.co_filename
        shown = file.removeprefix(self._root) if file.startswith(self._root) else _last_two(file)
        return f"{shown}:{frame.f_lineno}"

    def sent(self) -> list[Any]:
        """All events for the pytest process, by the numbers of their threads."""
        return [[events.number, events.events] for events in self.threads]


def _last_two(path: str) -> str:
    """The file of a package, with the folder around it."""
    return "/".join(path.split("/")[-2:])
