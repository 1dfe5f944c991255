"""Disturbances of a run: a late rank, a dying rank, a missing GPU."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from ddp_conformance.launched.history import Happened
from ddp_conformance.launched.journal import Journal
from ddp_conformance.launched.order import Order

LOOKS = 4
"""Times in a row that the others must be seen at rest."""
INTERVAL = 0.005
LONGEST = 2.0
"""Seconds that a late rank waits for the others to come to rest, at each stage."""
PATIENCE = 4.0
"""Seconds that another rank waits for the late one to look at the files, in all."""
LONG_REST = 40
"""Looks after which the late rank is taken to wait for something else than the others' rest."""
READS = 16
"""Files that a late rank reads late: the first ones, as a data set may have thousands."""

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
        self._reads = 0

    def at_stage(self) -> None:
        """Come late, if this is the late rank.

        Not by a number of seconds, which would prove nothing on a busy machine: the rank waits
        until all others sleep, mostly because they wait for this one.
        """
        if self._scenario.late == self._order.rank:
            with self._held_as(LATE):
                self._wait_for_rest()

    def at_reading(self) -> None:
        """Come late to a file that another rank may take away."""
        self._reads += 1
        if self._reads <= READS:
            self.at_stage()

    def at_change(self) -> None:
        """Come late to a call that removes, cuts, makes or renames, or let the late look first.

        It then acts on what it saw, when the others have acted.
        """
        self.at_stage()
        if self._scenario.late not in (None, self._order.rank):
            with self._held_as(LOOKING):
                self._let_look(self._scenario.late)

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
    def _held_as(self, name: str) -> Iterator[None]:
        mark = Path(self._order.files(self._order.rank), name)
        mark.touch()
        try:
            yield
        finally:
            mark.unlink(missing_ok=True)

    def _is_held(self, rank: int, name: str) -> bool:
        return Path(self._order.files(rank), name).exists()

    def _let_look(self, late: int) -> None:
        began, seen = time.monotonic(), 0
        end = began + self._patience
        while seen < LONG_REST and not self._is_held(late, LATE) and time.monotonic() < end:
            seen = seen + 1 if self._rests(late) else 0
            threading.Event().wait(INTERVAL)
        self._patience -= time.monotonic() - began

    def _wait_for_rest(self) -> None:
        end, seen = time.monotonic() + LONGEST, 0
        others = [r for r in range(self._order.world_size) if r != self._order.rank]
        while seen < LOOKS and time.monotonic() < end:
            seen = seen + 1 if all(map(self._rests, others)) else 0
            threading.Event().wait(INTERVAL)

    def _rests(self, rank: int) -> bool:
        """True if its main thread sleeps, or is no more; not while it lets a late rank look."""
        if self._is_held(rank, LOOKING):
            return False
        try:
            pid = Path(self._order.files(rank), "pid").read_text()
        except FileNotFoundError:
            return False
        try:
            stat = Path(f"/proc/{pid}/task/{pid}/stat").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):  # the second: it ended once opened
            return True
        return stat.rpartition(")")[2].split()[0] in "SZX"
