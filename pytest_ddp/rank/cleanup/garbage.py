"""Collects reference cycles that a test leaves, before the next test begins.

A compiled DDP model is such a cycle, and it holds its process group with the group's threads. The
garbage collector might free it in a DataLoader worker that a later test forks. There it joins
threads that do not exist in the fork, which crashes by SIGSEGV or never ends (torch 2.13).
"""

from __future__ import annotations

import sys

from pytest_ddp.rank.exits.exiting import freeze
from pytest_ddp.rank.status.phase_stack import PhaseStack
from pytest_ddp.system.stdlib import gc, time

_CHEAP = 0.0005
"""Seconds. What was imported before the first test is frozen, so that a full collection takes
0.15 ms at first; two hundred tests in each further file add 0.6 ms, a compiler that a test has
imported adds 50 ms."""
_FULL_EVERY = 8
"""A full collection after this many tests, where collecting young objects was enough for each."""
_LAST_ERROR = ("last_type", "last_value", "last_traceback", "last_exc")
"""Attributes of ``sys`` in which pytest keeps a failed test's frames, and so its variables, for a
debugger."""


class GarbageCollection:
    """Collects all objects after each test; only young ones where that is enough.

    In a rank whose tests have made neither a model nor a process group, old objects do no harm:
    collecting the test's own objects takes a tenth of the time. Once a full collection has become
    slow, it is done only after tests that may have left much.
    """

    def __init__(self, phase_stack: PhaseStack) -> None:
        self._phase_stack = phase_stack
        self._phases = 0
        self._of_ours = 0
        self._spent = 0.0
        self._moved = 0
        """The collector's count of moves of young objects to the oldest generation."""
        self._fresh = True

    def spare_collected(self) -> None:
        """Freeze what the collection of a file has made: modules and items stay for good.

        Only before the first test: later, objects of fixtures would be frozen as well, and cycles
        of theirs would never be freed.
        """
        if self._fresh:
            gc.collect()
            freeze()

    def spare_group(self, phases: int) -> None:
        """Ignore the torch phases that building the rank's own process group took."""
        self._of_ours += phases

    def collect(self, *, alone: bool) -> None:
        """Collect, once pytest has released a test's fixtures and frames.

        Args:
            alone: no fixture that is wider than the test was torn down with it.
        """
        self._fresh = False
        for name in _LAST_ERROR:
            vars(sys).pop(name, None)
        used_models = self._phase_stack.torch_phases > self._phases
        if alone and self._is_harmless():
            gc.collect(1)
        elif used_models or self._spent < _CHEAP or _much_is_new():
            begin = time.perf_counter()
            gc.collect()
            self._spent = time.perf_counter() - begin
        self._phases = self._phase_stack.torch_phases
        self._moved = gc.get_count()[2]

    def _is_harmless(self) -> bool:
        """Whether collecting young objects is enough, and reaches all that the test has made."""
        if self._phase_stack.torch_phases > self._of_ours:
            return False
        is_due = self._moved >= _FULL_EVERY and self._spent < _CHEAP
        return gc.get_count()[2] == self._moved and not is_due


def _much_is_new() -> bool:
    """True if some 700 objects more were made than freed since the last full collection."""
    young, *older = gc.get_count()
    # Counts go on even if a test has switched the collector off.
    return any(older) or young > gc.get_threshold()[0]
