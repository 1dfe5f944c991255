"""The terminal of the pytest process, lent to one rank at a time for its debugger."""

from __future__ import annotations

import contextlib
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from pytest_ddp.launch.rank_process import RankProcess
from pytest_ddp.protocol.messages import LiftTimeouts, ReturnTerminal, TerminalReply
from pytest_ddp.system.stdlib import os, signal, time

_STANDARD = (0, 1, 2)
_STEP = 0.5
"""Seconds to wait for a rank that makes a step, before another one gets the terminal."""
_NO_TERMINAL = "the standard input of pytest is no terminal"
_IN_WORKER = "a worker of pytest-xdist has no terminal; -n0 runs without workers"


class Terminal:
    """Lends standard input, output and error to ranks, and restores them afterwards."""

    def __init__(self, config: pytest.Config, warn: Callable[[str], None]) -> None:
        self._config = config
        self._warn = warn
        self._capture: Any = config.pluginmanager.getplugin("capturemanager")
        self._has_refused = False
        self._modes: Any = None
        self._handlers: dict[int, Any] = {}
        self.wants_post_mortem = bool(config.getoption("usepdb", False))
        """Whether failures are to be looked into (``--pdb``)."""
        self.quits = False
        """Whether the user has quit a debugger."""

    def lend(self, process: RankProcess) -> bool:
        """Lend the terminal, or send the rank the reason why not; True if it was lent."""
        refusal = process.refuses_terminal or self._take_from_pytest()
        if refusal is not None:
            if self.wants_post_mortem and not self._has_refused:
                self._warn(f"--pdb opens no debugger in ranks: {refusal}")
            self._has_refused = True
            process.send(TerminalReply(refusal))
            return False
        # The rank is in another session than the terminal: its reads and writes are not stopped as
        # a background job's, and keys that send signals still go to this process.
        process.send(TerminalReply(None), _STANDARD)
        self._handle(signal.SIGINT, lambda *_: process.signal(signal.SIGINT))
        self._handle(signal.SIGTSTP, signal.SIG_IGN)  # it would stop pytest, not the rank
        return True

    def take_back(self) -> None:
        """Return the terminal to pytest, in the modes that it had."""
        self._to_pytest()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()

    def _take_from_pytest(self) -> str | None:
        if hasattr(self._config, "workerinput"):
            return _IN_WORKER
        if self._capture is not None:
            self._capture.suspend_global_capture(in_=True)
        sys.stdout.flush()
        if not os.isatty(0):
            self._to_pytest()
            return _NO_TERMINAL
        import termios  # noqa: PLC0415 - only debugging needs it

        self._modes = termios.tcgetattr(0)
        return None

    def _to_pytest(self) -> None:
        if self._modes is not None:
            import termios  # noqa: PLC0415

            termios.tcsetattr(0, termios.TCSADRAIN, self._modes)
            self._modes = None
        if self._capture is not None:
            self._capture.resume_global_capture()

    def _handle(self, number: int, handler: Any) -> None:
        with contextlib.suppress(ValueError):  # pytest runs in a thread: no handlers there
            self._handlers[number] = signal.signal(number, handler)


class TerminalQueue:
    """The ranks of a test that wait for the terminal, which has it, and how long clocks pause."""

    def __init__(self, terminal: Terminal, processes: Iterable[RankProcess]) -> None:
        self._terminal = terminal
        self._processes = tuple(processes)
        self._waiting: deque[RankProcess] = deque()
        self._holder: RankProcess | None = None
        self._last: RankProcess | None = None
        self._last_until = 0.0
        """The moment until which the terminal is reserved for a rank that makes a step."""
        self._since = 0.0
        self._paused = 0.0
        self._entered = False

    @property
    def taken(self) -> bool:
        """Whether a rank has the terminal: no clock runs then."""
        return self._holder is not None

    def due_in(self) -> float:
        """Seconds until :meth:`lend` has something to do; infinite until a message arrives."""
        if self.taken or not self._waiting:
            return math.inf
        return max(0.0, self._last_until - time.monotonic())

    def take_pause(self) -> float:
        """Seconds that ranks had the terminal since the last call."""
        paused, self._paused = self._paused, 0.0
        return paused

    def want(self, process: RankProcess) -> None:
        """A rank is at a debugger's prompt."""
        if self._terminal.quits:
            return
        if process is self._last:
            self._waiting.appendleft(process)
            self._last_until = 0.0
        else:
            self._waiting.append(process)
        self.lend()

    def lend(self) -> None:
        """Give the terminal to the next rank that waits, if it is free."""
        # A loop, since the terminal may refuse a rank.
        while self._waiting and self.due_in() == 0:
            process = self._waiting.popleft()
            if self._terminal.lend(process):
                self._holder, self._since = process, time.monotonic()
                self._lift_timeouts()

    def leave(self, process: RankProcess, returned: ReturnTerminal | None = None) -> None:
        """Take the terminal back from a rank that has left its debugger, or whose process has
        ended."""
        if process in self._waiting:
            self._waiting.remove(process)
        if process is not self._holder:
            return
        self._terminal.take_back()
        self._holder = None
        self._paused += time.monotonic() - self._since
        if returned is not None:
            if returned.quits:
                # Ranks in the queue get no turn any more: they wait until they are stopped.
                self._terminal.quits = True
                self._waiting.clear()
            self._last = process if returned.steps else None
            self._last_until = time.monotonic() + _STEP if returned.steps else 0.0
        self.lend()

    def end(self) -> None:
        """The test or the session is over: take the terminal back."""
        self._waiting.clear()
        if self._holder is not None:
            self.leave(self._holder)

    def _lift_timeouts(self) -> None:
        if self._entered:
            return
        self._entered = True
        for process in self._processes:
            if not process.gone:
                process.send(LiftTimeouts())
