"""Ranks that know by files where the others are: who acts first is chosen, and not by chance."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.writing.writes import looking_away
from pytest_ddp.system.frames import current_frames

BETWEEN = -1
READ = -2
"""Names of marks: between a write and its rename, and when the record has been read."""

PATIENCE = 5.0
"""Seconds that a rank waits for ranks that come to none of the places where they are known: they
may be waiting for its file."""

INTERVAL = 0.001

ASLEEP = 20
"""Looks in a row, one each interval, at which a thread must sleep to be taken to wait."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A rank that is about to change something."""

    paths: tuple[str, ...]
    acted: tuple[str, ...]
    """What the rank has changed since its last exchange."""
    acts: int
    """How often the rank has changed something since its last exchange."""

    @property
    def again(self) -> bool:
        """Whether the rank tries what it has tried already, as one that waits for a lock."""
        return set(self.paths) <= set(self.acted)


def next_to_act(held: dict[int, Pending], ahead: bool = False) -> int:
    """The rank that goes on, of those that are held, when all others wait in an exchange.

    Ranks that are about to change the same thing have looked whether it is to be done: one after
    the other does it, before any of them goes on, as what it does next may hide that another
    one came too late. Else the rank that has done least. Or, with ``ahead``, the first one: what
    it does alone comes before what all do.
    """

    def order(rank: int) -> tuple[bool, int, int, int]:
        own = held[rank]
        others = [other for number, other in held.items() if number != rank]
        # One that has tried already was not too late for what others have done.
        shared = sum(
            _overlap(own.paths, (*other.paths, *(() if own.again else other.acted)))
            for other in others
        )
        acts = 0 if ahead and not shared else own.acts
        return own.again, -shared, acts, rank

    return min(held, key=order)


def _overlap(some: Sequence[str], others: Sequence[str]) -> bool:
    """Whether a path is in both, or within one of the other."""
    return any(
        one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")
        for one in some
        for other in others
    )


class Arriving:
    """Ranks that leave a mark when they come to an exchange: they wait for others from there on.

    ``ahead`` is for :func:`next_to_act`.
    """

    def __init__(self, ranks: Ranks, marks: Path, ahead: bool = False) -> None:
        self._ranks = ranks
        self._marks = marks
        self._ahead = ahead
        self._exchanges = 0
        self._acted: tuple[str, ...] = ()
        self._acts = 0
        self._meetings: Counter[str] = Counter()
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._task = threading.get_native_id()

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return self._ranks.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._ranks.world_size

    @property
    def has_acted(self) -> bool:
        """Whether this rank has changed something since its last exchange, for which it was
        held."""
        return self._acts > 0

    def gather(self, obj: Any) -> list[Any]:
        """Gather as the ranks' own function does."""
        with looking_away():
            self._exchanges += 1
            self._acted, self._acts = (), 0
            self._mark(self.rank, self._exchanges).touch()
            return self._ranks.gather(obj)

    def _mark(self, rank: int, exchange: int, name: int = 0) -> Path:
        """The mark of an exchange, or of something on the way to it."""
        return self._marks / f"{rank}-{exchange}-{name}"

    # ---------------------------------------------------------------- one rank comes last

    def come_last(self) -> None:
        """Wait until all others are at the exchange after this rank's last one, or wait for it.

        Or for so long that they must be waiting for something else.
        """
        if not self._is_main():
            self._come_after_reading()
            return
        following = self._exchanges + 1
        self._await(lambda rank: self._waits(rank, following))

    def _waits(self, rank: int, following: int) -> bool:
        return self._mark(rank, following).exists() or self._waits_in_group(rank)

    def come_between(self) -> None:
        """Mark that this rank has written and is about to rename; then wait for all others."""
        self._mark(self.rank, self._exchanges + 1, BETWEEN).touch()
        self.come_last()

    def await_between(self, late: int) -> None:
        """Wait for that mark of the rank ``late``, or until it is at its next exchange."""
        following = self._exchanges + 1
        marks = [self._mark(late, following, name) for name in (0, BETWEEN)]
        self._await(lambda rank: rank != late or any(mark.exists() for mark in marks))

    # ---------------------------------------------------------------- another thread comes last

    def has_read(self) -> None:
        """Mark that this rank needs nothing more of the others."""
        self._mark(self.rank, 0, READ).touch()

    def _is_main(self) -> bool:
        return (os.getpid(), threading.get_ident()) == (self._process, self._thread)

    def _come_after_reading(self) -> None:
        """Wait, in a thread or child of this rank, until all ranks have read, this one as well.

        Or until the thread that makes the collectives waits, for this one, and all others for that.
        """
        asleep = 0

        def reached() -> bool:
            nonlocal asleep
            if all(self._mark(rank, 0, READ).exists() for rank in range(self.world_size)):
                return True
            following = self._arrived() + 1
            others = (rank for rank in range(self.world_size) if rank != self.rank)
            waits = all(self._waits(rank, following) for rank in others) and self._main_waits()
            asleep = asleep + 1 if waits and following == self._arrived() + 1 else 0
            return asleep >= ASLEEP

        self._until(reached, PATIENCE)

    def _arrived(self) -> int:
        """Exchanges of this rank, as its child cannot know but by the marks."""
        number = self._exchanges
        while self._mark(self.rank, number + 1).exists():
            number += 1
        return number

    def _main_waits(self) -> bool:
        """Whether that thread sleeps, and not for a time that it has set."""
        try:
            stat = Path(f"/proc/{self._process}/task/{self._task}/stat").read_text(errors="replace")
        except OSError:
            return True
        if stat.rpartition(")")[2].split()[0] == "R":
            return False
        if os.getpid() != self._process:
            return True
        return waits_for_another(current_frames()[self._thread])

    # ---------------------------------------------------------------- one after the other

    def take_turn(self, paths: tuple[str, ...]) -> None:
        """Wait, before a change, until all others wait, and it is this rank's turn."""
        own = self._held(self.rank)
        beside = own.with_suffix(".new")
        beside.write_text(json.dumps([paths, self._acted, self._acts]), encoding="utf-8")
        beside.replace(own)
        before: dict[int, Pending] | None = None

        def is_next() -> bool:
            nonlocal before
            last, before = before, self._all_held()
            # Looked at twice, as they are read one by one.
            settled = before is not None and before == last
            return settled and next_to_act(before or {}, self._ahead) == self.rank

        self._until(is_next, PATIENCE)
        self._acted, self._acts = (*self._acted, *paths), self._acts + 1
        own.unlink(missing_ok=True)

    def _held(self, rank: int) -> Path:
        return self._marks / f"{rank}-held"

    def _all_held(self) -> dict[int, Pending] | None:
        """This rank and those that are held, if all others wait; None if one of them does not."""
        following = self._arrived() + 1
        found: dict[int, Pending] = {}
        for rank in range(self.world_size):
            if rank != self.rank and self._mark(rank, following).exists():
                continue
            try:
                paths, acted, acts = json.loads(self._held(rank).read_text(encoding="utf-8"))
            except FileNotFoundError:
                return None
            found[rank] = Pending(tuple(paths), tuple(acted), acts)
        return found

    # ---------------------------------------------------------------- groups that leave out ranks

    def meet(self, group: str, members: Sequence[int]) -> bool:
        """Wait for the ranks that must come to a collective of a group, which leaves out others.

        One that is at the exchange after this rank's last one will not, for it waits there for
        this rank: then return False.
        """
        number = self._meetings[group] = self._meetings[group] + 1
        self._at(group, number, self.rank).touch()
        waiting = self._waiting(self.rank)
        waiting.write_text(json.dumps([group, number, list(members)]), encoding="utf-8")
        pause = threading.Event()
        with looking_away():
            while True:
                gone = [r for r in members if self._mark(r, self._exchanges + 1).exists()]
                missing = [r for r in members if not self._at(group, number, r).exists()]
                if not missing or not set(gone).isdisjoint(missing):
                    waiting.unlink()
                    return not missing
                pause.wait(INTERVAL)

    def _at(self, group: str, number: int, rank: int) -> Path:
        """The mark of a rank at the n-th collective of a group."""
        return self._marks / f"group-{group}-{number}-{rank}"

    def _waiting(self, rank: int) -> Path:
        return self._marks / f"{rank}-waiting"

    def _waits_in_group(self, rank: int) -> bool:
        """Whether a rank waits for this one at a collective of a group that leaves out ranks."""
        with suppress(FileNotFoundError, ValueError):  # the second: it is just being written
            group, number, members = json.loads(self._waiting(rank).read_text(encoding="utf-8"))
            return self.rank in members and not self._at(group, number, self.rank).exists()
        return False

    # ---------------------------------------------------------------- waiting

    def _await(self, there: Callable[[int], bool]) -> None:
        others = [rank for rank in range(self.world_size) if rank != self.rank]
        self._until(lambda: all(map(there, others)), PATIENCE)

    def _until(self, reached: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        pause = threading.Event()
        with looking_away():
            while time.monotonic() < deadline and not reached():
                pause.wait(INTERVAL)


def waits_for_another(frame: FrameType | None) -> bool:
    """Whether a thread that sleeps there does so until another one wakes it.

    Not for some time, as in ``join(timeout=1)``, which shows nothing.
    """
    limits: list[object] = []
    while frame is not None and frame.f_globals.get("__name__") == "threading":
        if frame.f_code is threading.Thread.start.__code__:
            return False  # until it runs
        limits.append(frame.f_locals.get("timeout"))
        frame = frame.f_back
    return bool(limits) and limits[-1] in (None, -1)


def marks_for(case: Case, ranks: Ranks, number: int = 0) -> Path:
    """A new folder beside that of the case."""
    marks = case.directory.with_name(f"{case.directory.name}-marks-{number}")
    if case.rank == 0:
        marks.mkdir()
    ranks.gather(None)
    return marks
