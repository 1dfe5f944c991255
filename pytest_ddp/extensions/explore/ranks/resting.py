"""Looks at what the threads of this rank do while a thread of any rank is held.

A rank rests if each of its threads waits for others or polls, and no thread runs. Known waits come
from the stream of operations. Whether a thread runs comes from the kernel: the state of each
thread, those of C++ included, and for Python's the time on a processor since the last look. So a
thread that only waits for the interpreter's lock, or that a message has just woken, is not taken to
rest, however busy the machine is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from pytest_ddp.extensions.explore.ranks.board import Board, Field, State
from pytest_ddp.extensions.explore.ranks.recording import Recording
from pytest_ddp.rank.operations.kernel_waits import kernels_number
from pytest_ddp.rank.operations.origins import stack_of
from pytest_ddp.rank.operations.stream import Operations
from pytest_ddp.rank.operations.wait import Wait, WaitKind
from pytest_ddp.system import processes
from pytest_ddp.system.stdlib import os, select, threading, time

PAUSE = 0.01
"""Seconds between two looks."""

_WAKES = 3
"""How often a thread that sleeps at one line, and does nothing else, must have woken to be one that
polls, or keeps time."""

_BEATS, _LASTING = 10, 1.5
"""How often a thread that passes no point in between must have woken to be one that polls, and the
seconds for which it must do so: a loop that sleeps and computes is no poll, but a thread that keeps
time ends by itself at no time."""
_AWAKE = 0.2
"""Seconds for which a thread that polls may be awake."""

_FOR_OTHERS = frozenset(
    {
        *(WaitKind.COLLECTIVE, WaitKind.RECEIVE, WaitKind.SEND, WaitKind.WORK, WaitKind.STORE),
        *(WaitKind.FIXTURE, WaitKind.FLOCK, WaitKind.QUEUE, WaitKind.LOCK, WaitKind.THREAD),
    }
)
_POLLS_INSIDE = frozenset({WaitKind.STORE})
"""A store that is a file looks at it every ten milliseconds."""
_BYSTANDERS = ("pytest-ddp", "tqdm")


_BY_ITSELF = frozenset({WaitKind.SLEEP, WaitKind.LOCK, WaitKind.QUEUE, WaitKind.POLL})
"""Waits that a thread may end by itself again and again, and do nothing in between."""

Place: TypeAlias = tuple[tuple[int, int], ...]
"""Code and instruction of a thread's innermost frames."""

_FRAMES = 3


class _ThreadLook(NamedTuple):
    """A thread at the last look."""

    ran: bytes
    """How long and how often the thread has run."""
    at: Place
    moves: int
    """Points of progress that the thread has passed."""
    wakes: int
    """How often the thread has run since and come back to the same instruction."""
    since: float
    """When the thread was first seen to sleep at this place."""
    slept: float
    """When the thread was last seen to sleep at this place."""
    repeats: bool
    """Whether the thread passes the same points in between, or waits for what others may do
    earlier."""

    @property
    def polls(self) -> bool:
        """Whether the thread does the same again and again, and sleeps in between."""
        if self.repeats:
            return self.wakes >= _WAKES
        return self.wakes >= _BEATS and self.slept - self.since >= _LASTING


class RestWatch:
    """Shows on the board what this rank does, in a thread of its own, until :meth:`stop`."""

    def __init__(self, board: Board, recording: Recording, operations: Operations) -> None:
        self._board = board
        self._recording = recording
        self._operations = operations
        self._held: set[int] = set()
        """Identifiers of threads that are held."""
        self._seen: dict[int, _ThreadLook] = {}
        self._calm = 0
        self._is_stopped = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="pytest-ddp explore", daemon=True)

    def start(self) -> None:
        self._board.put(Field.PROCESS, os.getpid())
        self._thread.start()

    def stop(self) -> None:
        """The test has ended on this rank."""
        self._is_stopped = True
        self._thread.join()
        self._board.put(Field.STATE, State.ENDED)

    def hold(self, thread: int) -> None:
        """Leave out a thread of this rank, which is held."""
        with self._lock:
            self._held.add(thread)

    def release(self, thread: int, then: Callable[[], None]) -> None:
        """Look at a thread of this rank again, which is held no longer.

        Args:
            thread: its identifier.
            then: called when no earlier look can be shown any more.
        """
        with self._lock:
            self._held.discard(thread)
            self._calm = 0
            self._board.put(Field.CALM, 0)
            self._board.put(Field.STATE, State.COMPUTES)
            then()

    # ------------------------------------------------------------------ looks

    def _watch(self) -> None:
        while not self._is_stopped:
            if self._board.is_any_held():
                with self._lock:
                    self._look()
            select.select([], [], [], PAUSE)

    def _look(self) -> None:
        board, waits = self._board, self._operations.waits()
        state, moved, exchange = State.RESTS, False, 0
        seen: dict[int, _ThreadLook] = {}
        native: set[int] = {kernels_number(self._thread)}
        for thread in threading.enumerate():
            ident, number = thread.ident or 0, kernels_number(thread)
            native.add(number)
            if ident in self._held or thread.name.startswith(_BYSTANDERS):
                continue
            wait = waits.get(ident, Wait(WaitKind.UNKNOWN))
            before = self._seen.get(ident)
            now = seen[ident] = self._see(ident, number, wait)
            has_run = before is None or before.ran != now.ran
            of_thread, is_steady = self._state(wait, now, has_run=has_run)
            moved |= has_run and not is_steady
            if wait.kind is WaitKind.FIXTURE:
                exchange = self._recording.exchanges
            state = min(state, of_thread)
        if self._others_run(native):
            state = State.COMPUTES
        self._seen = seen
        self._calm = self._calm + 1 if state is State.RESTS and not moved else 0
        board.put(Field.EXCHANGE, exchange)
        board.put(Field.STATE, state)
        board.put(Field.CALM, self._calm)
        board.put(Field.LOOKS, board.get(board.rank, Field.LOOKS) + 1)

    def _state(self, wait: Wait, now: _ThreadLook, *, has_run: bool) -> tuple[State, bool]:
        """What a thread does, and whether it goes on to do that although it has run."""
        if now.polls or wait.kind in _POLLS_INSIDE:
            return State.RESTS, True
        if wait.kind in _FOR_OTHERS:
            return State.COMPUTES if has_run else State.RESTS, False
        if wait.kind is WaitKind.POLL and not (has_run or wait.is_timed or _has_children()):
            return State.RESTS, False
        by_itself = wait.kind in (WaitKind.SLEEP, WaitKind.SUBPROCESS, WaitKind.POLL)
        return State.SLEEPS if by_itself else State.COMPUTES, False

    def _see(self, thread: int, native: int, wait: Wait) -> _ThreadLook:
        ran, now = _read(native, "schedstat"), time.monotonic()
        events = self._recording.of(thread)
        moves, again = (0, 0) if events is None else (events.moves, events.again)
        before = self._seen.get(thread)
        goes_on = before is not None and before.moves == moves
        if wait.kind not in _BY_ITSELF or not wait.is_timed:
            if before is not None and goes_on and now - before.slept < _AWAKE:
                return before._replace(ran=ran)
            return _ThreadLook(ran, (), moves, 0, 0.0, 0.0, repeats=False)
        at = tuple((id(frame.f_code), frame.f_lasti) for frame in stack_of(thread)[:_FRAMES])
        if before is None or not goes_on or before.at != at:
            return _ThreadLook(ran, at, moves, 0, now, now, repeats=False)
        repeats = wait.kind is not WaitKind.SLEEP or again > 0
        wakes = before.wakes + (before.ran != ran)
        return _ThreadLook(ran, at, moves, wakes, before.since, now, repeats)

    def _others_run(self, known: set[int]) -> bool:
        """Whether a thread of C++ runs, or could."""
        tasks = {int(name) for name in os.listdir("/proc/self/task")}
        states = (processes.state_of(f"/proc/self/task/{task}") for task in tasks - known)
        return any(state in ("R", "D") for state in states)


def _has_children() -> bool:
    return any(_read(int(name), "children").strip() for name in os.listdir("/proc/self/task"))


def _read(task: int, name: str) -> bytes:
    """A file of a thread of this process; nothing if it has ended."""
    try:
        return processes.read(f"/proc/self/task/{task}/{name}")
    except OSError:
        return b""
