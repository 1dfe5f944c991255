"""Disturbances of a run: a late rank, a dying rank, a missing GPU."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from ddp_conformance.launched.history import Changes, Happened
from ddp_conformance.launched.journal import Journal
from ddp_conformance.launched.order import Order
from ddp_conformance.launched.process.own_waits import OwnWait, own_waits, sleep
from pytest_ddp.system import processes

LOOKS = 4
"""Times in a row that the others must be seen at rest."""
INTERVAL = 0.005
LONGEST = 2.0
"""Seconds that a late rank waits for the others to come to rest, at each stage."""
ALONE = 6.0
"""Seconds more that a late rank waits, in all, for others that wait for a time or a process of
their own."""
PATIENCE = 4.0
"""Seconds that another rank waits for the late one to look at the files, in all."""
LONG_REST = 40
"""Looks after which the late rank is taken to wait for something else than the others' rest."""
READS = 16
"""Files that a late rank reads late: the first ones, as a data set may have thousands."""
VIEWS = 16
"""Times that a late rank looks late at what is there."""

ENDED = ("Z", "X")
"""States of a process that has ended."""

LATE, LOOKING = "late", "looking"
"""Files of a rank that exist while it is held."""


class InjectedError(RuntimeError):
    """Raised in a rank that the check made fail."""


class Nemesis:
    """Acts at the stages of one rank."""

    def __init__(self, order: Order, journal: Journal) -> None:
        self._order = order
        self._journal = journal
        self._scenario = order.work.scenario
        self._patience = PATIENCE
        self._alone = ALONE
        self._reads = 0
        self._views = 0
        self._changes = False

    def at_stage(self) -> None:
        """Come late, if this is the late rank.

        Not by a number of seconds, which would prove nothing on a busy machine: the rank waits
        until all others wait for it, or have ended. One that sleeps for a time does not.
        """
        if self._scenario.late == self._order.rank and not self._scenario.looked:
            with self._held_as(LATE):
                self._wait_for_rest()

    def at_reading(self) -> None:
        """Come late to a file that another rank may take away."""
        self._reads += 1
        if self._reads <= READS:
            self.at_stage()

    def at_view(self) -> None:
        """Come late to a look whether a file is there, or which are."""
        self._views += 1
        if self._views <= VIEWS:
            self.at_stage()

    def at_change(self, paths: Sequence[str]) -> None:
        """Come late to a call that removes, cuts, makes or renames, or let the late look first.

        It then looks when the others have acted, or, in a run where it has ``looked``, acts on
        what it saw before: two orders that exclude each other for one change.
        """
        if not self._changes:
            self._journal.add(Changes(self._order.rank))
            self._changes = True
        late = self._scenario.late
        if late == self._order.rank:
            with self._held_as(LATE, paths):
                self._wait_for_rest(paths)
        elif late is not None:
            with self._held_as(LOOKING, paths):
                self._let_look(late, paths)

    def at_step(self) -> None:
        """Come late, or die if this is the dying rank."""
        self.at_stage()
        if self._scenario.dying == self._order.rank:
            self.die()

    def die(self) -> NoReturn:
        """Die in the scenario's way."""
        self._journal.add(Happened(self._order.rank, "fault"))
        if self._scenario.death == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._scenario.death == "exits with 0":
            os._exit(0)
        raise InjectedError(f"rank {self._order.rank} was made to fail")

    @contextmanager
    def _held_as(self, name: str, paths: Sequence[str] = ()) -> Iterator[None]:
        mark = Path(self._order.files(self._order.rank), name)
        mark.write_bytes(os.fsencode("\0".join(paths)))
        try:
            yield
        finally:
            mark.unlink(missing_ok=True)

    def _held_at(self, rank: int, name: str) -> list[Path] | None:
        """The paths that a held rank is about to change; ``None`` if it is not held."""
        try:
            paths = os.fsdecode(Path(self._order.files(rank), name).read_bytes())
        except FileNotFoundError:
            return None
        return [Path(path) for path in paths.split("\0") if path]

    def _let_look(self, late: int, paths: Sequence[str]) -> None:
        began, seen = time.monotonic(), 0
        end = began + self._patience
        while seen < LONG_REST and time.monotonic() < end:
            held = self._held_at(late, LATE)
            if held is not None and (not self._scenario.looked or _meet(held, paths)):
                break
            # Held at another change, it goes on soon.
            rests = held is None and not self._waits_alone(late, {}) and self._rests(late)
            seen = seen + 1 if rests else 0
            sleep(INTERVAL)
        self._patience -= time.monotonic() - began

    def _wait_for_rest(self, paths: Sequence[str] = ()) -> None:
        end, seen = time.monotonic() + LONGEST, 0
        others = [r for r in range(self._order.world_size) if r != self._order.rank]
        known: dict[tuple[int, int], int] = {}
        while seen < LOOKS and (now := time.monotonic()) < end:
            alone = self._alone > 0 and any(self._waits_alone(r, known) for r in others)
            seen = seen + 1 if not alone and all(self._rests(r, paths) for r in others) else 0
            sleep(INTERVAL)
            if alone:
                passed = time.monotonic() - now
                self._alone -= passed
                end += passed

    def _waits_alone(self, rank: int, known: dict[tuple[int, int], int]) -> bool:
        """Whether a rank waits for something that no other rank brings, and that comes soon enough.

        Of its other threads only those count that wait since this rank is held, not one that
        does something every second. ``known`` has the first wait of each of them.
        """
        files = Path(self._order.files(rank))
        if self._has_ended(rank):
            return False
        return any(self._counts(wait, rank, known) for wait in own_waits(files))

    def _counts(self, wait: OwnWait, rank: int, known: dict[tuple[int, int], int]) -> bool:
        if time.monotonic() + self._alone < wait.end < math.inf:
            return False
        first = known.setdefault((rank, wait.thread), wait.began)
        return first == wait.began or wait.thread == self._pid(rank)

    def _rests(self, rank: int, paths: Sequence[str] = ()) -> bool:
        """True if a rank's main thread sleeps, or is no more; not while it lets a late rank look.

        Before another change than that of ``paths`` it waits until the late rank, which has
        looked, comes to that one.
        """
        held = self._held_at(rank, LOOKING)
        if held is not None:
            return self._scenario.looked and bool(held) and not _meet(held, paths)
        return self._state(rank) in ("S", *ENDED)

    def _has_ended(self, rank: int) -> bool:
        return self._state(rank) in ENDED

    def _state(self, rank: int) -> str:
        """The state of a rank's main thread, as proc(5) has it; empty before the rank begins."""
        pid = self._pid(rank)
        if pid == 0:
            return ""
        return processes.state_of(f"/proc/{pid}/task/{pid}") or "X"

    def _pid(self, rank: int) -> int:
        """The pid of a rank; 0 before it begins."""
        try:
            return int(Path(self._order.files(rank), "pid").read_text())
        except (FileNotFoundError, ValueError):
            return 0


def _meet(paths: Iterable[Path], others: Sequence[str]) -> bool:
    """Whether one of the paths is one of the others, or is in it or around it."""
    return any(
        path.is_relative_to(other) or Path(other).is_relative_to(path)
        for path in paths
        for other in others
    )
