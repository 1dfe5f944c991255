"""Reference cycles that a test leaves are collected before the next one begins.

A compiled DDP model is such a cycle, and it holds its process group with its threads.
Left to chance it may be collected in a DataLoader worker that a later test forks, where
joining threads that did not come along is a SIGSEGV or never ends (seen with torch 2.13).
"""

from __future__ import annotations

import sys

from pytest_ddp.rank.exits.exiting import freeze
from pytest_ddp.rank.watch.lifecycle import Lifecycle
from pytest_ddp.system.own import gc, time

_CHEAP = 0.0005
"""Seconds. What was imported before the first test is frozen, so that a full collection takes
0.15 ms at first; two hundred tests in each further file make it 0.6 ms more, a compiler that a
test has imported 50 ms."""
_SELDOM = 8
"""Tests of which the last has all looked at where a look at what is new has been enough."""
_LAST_ERROR = ("last_type", "last_value", "last_traceback", "last_exc")
"""Where pytest keeps a failed test's frames for a debugger, and with them its variables."""


class Garbage:
    """Collects after each test, or only after those that may have left much if it takes long.

    In a rank whose tests have made neither a model nor a process group nothing old can do harm: a
    look at what the test has made takes a tenth of the time.
    """

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._phases = 0
        self._of_ours = 0
        self._spent = 0.0
        self._moved = 0
        """How often what is new had been moved among what is old, as the collector counts it."""
        self._fresh = True

    def spare_collected(self) -> None:
        """Called when a file has been collected: modules and items stay for the rank's life.

        Later on fixtures may be up, or left in cycles: only before the first test is all that
        is there to stay.
        """
        if self._fresh:
            gc.collect()
            freeze()

    def spare_group(self, phases: int) -> None:
        """Called when the rank's own process group is there, which took so many phases."""
        self._of_ours += phases

    def collect(self, *, alone: bool) -> None:
        """Called once pytest has let go of a test's fixtures and frames.

        Args:
            alone: no fixture that is wider than the test has ended with it.
        """
        self._fresh = False
        for name in _LAST_ERROR:
            vars(sys).pop(name, None)
        used_models = self._lifecycle.torch_phases > self._phases
        if alone and self._is_harmless():
            gc.collect(1)
        elif used_models or self._spent < _CHEAP or _much_is_new():
            begin = time.perf_counter()
            gc.collect()
            self._spent = time.perf_counter() - begin
        self._phases = self._lifecycle.torch_phases
        self._moved = gc.get_count()[2]

    def _is_harmless(self) -> bool:
        """Whether a look at what is new is enough, and finds all that the test has made."""
        if self._lifecycle.torch_phases > self._of_ours:
            return False
        is_due = self._moved >= _SELDOM and self._spent < _CHEAP
        return gc.get_count()[2] == self._moved and not is_due


def _much_is_new() -> bool:
    """Since the last full collection, some 700 objects more came than went."""
    young, *older = gc.get_count()
    # A test may have switched off the collector, which counts on.
    return any(older) or young > gc.get_threshold()[0]
