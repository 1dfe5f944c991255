"""What the threads of this rank's test do, as events; and the points at which one is held."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from sys import _getframe
from typing import Any, TypeAlias

from pytest_ddp.extensions.explore.ranks.board import Board
from pytest_ddp.rank.operations.origins import user_frame
from pytest_ddp.system.stdlib import os, threading, time

Use: TypeAlias = tuple[str, bool, str]
"""An access: the thing, whether it changes it, and the verb."""

KEPT = 20_000
"""Events of a thread that are kept; a poll has few."""
_CYCLE = 6
"""Points that a poll passes in one round, at most."""
_ROUNDS = 3
"""Rounds after which a thread is taken to poll."""
_LATE = 5
"""How many times longer than its last rounds a poll may take until its next point."""

OnPoint: TypeAlias = Callable[[int, str, int], None]
"""Is called with thread, name and number of a point that is about to be passed."""


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
        """Names and sites of its last points."""
        self._times: deque[float] = deque(maxlen=_CYCLE * _ROUNDS)

    def passes(self, name: str, site: str) -> bool:
        """Note a point; returns whether that is progress, and no new round of a poll."""
        self._last.append((name, site))
        self._times.append(time.monotonic())
        return not self._round()

    def polls(self) -> bool:
        """Whether its last points are rounds of a poll, of which the next one may come yet."""
        length = self._round()
        if not length:
            return False
        times = [*self._times]
        round_ = (times[-1] - times[-1 - length * (_ROUNDS - 1)]) / (_ROUNDS - 1)
        return time.monotonic() - times[-1] < max(_LATE * round_, 0.1)

    def _round(self) -> int:
        """How many points the thread's poll passes in one round; 0 if it does not poll."""
        last = [*self._last]
        for length in range(1, _CYCLE + 1):
            if len(last) < length * _ROUNDS:
                return 0
            rounds = last[-length * _ROUNDS :]
            if rounds == rounds[:length] * _ROUNDS:
                return length
        return 0


class Recording:
    """The events of one run on this rank, from its begin until :meth:`end`."""

    def __init__(self, rank: int, world_size: int, root: str, board: Board | None) -> None:
        """
        Args:
            rank: of the default process group.
            world_size: number of ranks.
            root: the session's root folder, to which the files of lines are relative.
            board: shows the others how far the threads are; None where nobody waits for that.
        """
        self.rank = rank
        self.world_size = world_size
        self.is_on = False
        self.on_point: OnPoint = lambda thread, name, number: None
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
        """The calling thread is the one of this number from now on."""
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

    def polls(self, ident: int) -> bool:
        """Whether a thread polls, by its identifier."""
        events = self._by_ident.get(ident)
        return events is not None and events.polls()

    # ------------------------------------------------------------------ events

    def point(
        self,
        name: str,
        uses: Callable[[], Iterable[Use]] | Sequence[Use] = (),
        gives: Callable[[], Sequence[str]] | Sequence[str] = (),
        takes: Sequence[str] = (),
    ) -> None:
        """The calling thread passes a point, after it was held there if the schedule wants that.

        Args:
            name: of the point.
            uses: what the thread uses then; if a function, it is called after a hold.
            gives: tokens; the same.
            takes: tokens.
        """
        events = self.own()
        if events is None:
            return
        events.is_quiet = True
        try:
            events.counts[name] += 1
            number = events.counts[name]
            site = self._site()
            self.on_point(events.number, name, number)
            if events.passes(name, site) and self._board is not None:
                self._board.passed(events.number)
            made = [*(uses() if callable(uses) else uses)], (gives() if callable(gives) else gives)
            self._add(events, name, number, site, *made, takes)
        finally:
            events.is_quiet = False

    def note(self, gives: Sequence[str] = (), takes: Sequence[str] = ()) -> None:
        """The calling thread gives or takes tokens where it is held at no time."""
        if (events := self.own()) is not None:
            self._add(events, "", 0, "", (), gives, takes)

    def _add(self, events: ThreadEvents, *row: Any) -> None:
        rows = events.events
        if len(rows) < KEPT:
            rows.append((time.monotonic(), *row))

    def _site(self) -> str:
        frame = user_frame(_getframe(2))
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
