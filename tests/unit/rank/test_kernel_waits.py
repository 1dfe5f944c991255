"""What threads wait for in C, as the kernel shows it: real threads in real calls."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import queue
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from pytest_ddp.rank.operations import kernel_waits
from pytest_ddp.rank.operations.stream import Operations
from pytest_ddp.rank.operations.wait import Wait, WaitKind

_LIMIT = 30.0
"""Seconds; each wait here ends as soon as it was looked at."""


class _Waits:
    """Functions that wait, and what ends each."""

    def __init__(self, folder: Path) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.event = threading.Event()
        self.queue: queue.Queue[int] = queue.Queue()
        self.future: Future[int] = Future()
        self.ours, self.theirs = socket.socketpair()
        self.path = folder / "lock"
        self.held = self.path.open("w")
        fcntl.flock(self.held, fcntl.LOCK_EX)
        self.other = threading.Thread(target=self.event.wait)
        self.other.start()

    def flock(self) -> None:
        with self.path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)

    def command(self) -> None:
        self._command("input()")

    def output(self) -> None:
        self._command("print(input())", stdout=subprocess.PIPE)

    def _command(self, code: str, stdout: int | None = None) -> None:
        process = subprocess.Popen(
            [sys.executable, "-Sc", code], stdin=self.theirs.fileno(), stdout=stdout
        )
        process.communicate()

    def end(self) -> None:
        self.lock.release()
        self.event.set()
        self.queue.put(1)
        self.future.set_result(1)
        self.ours.sendall(b"x\n")
        self.held.close()
        self.other.join()


@pytest.fixture
def waits(tmp_path: Path) -> Iterator[_Waits]:
    made = _Waits(tmp_path)
    yield made
    for one in (made.ours, made.theirs):
        one.close()


CASES: dict[str, tuple[Callable[[_Waits], Any], WaitKind, bool]] = {
    "sleep": (lambda _: time.sleep(1), WaitKind.SLEEP, True),
    "flock": (lambda waits: waits.flock(), WaitKind.FLOCK, False),
    "lock": (lambda waits: waits.lock.acquire(), WaitKind.LOCK, False),
    "event": (lambda waits: waits.event.wait(), WaitKind.LOCK, False),
    "event with a limit": (lambda waits: waits.event.wait(_LIMIT), WaitKind.LOCK, True),
    "future": (lambda waits: waits.future.result(), WaitKind.LOCK, False),
    "queue": (lambda waits: waits.queue.get(), WaitKind.QUEUE, False),
    "queue with a limit": (lambda waits: waits.queue.get(timeout=_LIMIT), WaitKind.QUEUE, True),
    "thread": (lambda waits: waits.other.join(), WaitKind.THREAD, False),
    "command": (lambda waits: waits.command(), WaitKind.SUBPROCESS, False),
    "output": (lambda waits: waits.output(), WaitKind.SUBPROCESS, False),
    "socket": (lambda waits: waits.theirs.recv(1), WaitKind.POLL, False),
    "select": (lambda waits: select.select([waits.theirs], [], []), WaitKind.POLL, False),
    "select with a limit": (
        lambda waits: select.select([waits.theirs], [], [], _LIMIT),
        WaitKind.POLL,
        True,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_wait_in_c_has_its_kind(waits: _Waits, name: str) -> None:
    function, kind, is_timed = CASES[name]
    thread = threading.Thread(target=lambda: function(waits))
    thread.start()
    try:
        found = _until_blocked(Operations(), thread)
    finally:
        waits.end()
        thread.join()
    assert (found.kind, found.is_timed) == (kind, is_timed)


def test_what_computes_is_no_wait() -> None:
    is_over = False

    def compute() -> None:
        while not is_over:
            pass

    thread = threading.Thread(target=compute)
    thread.start()
    kinds = {_kind_of(Operations(), thread).kind for _ in range(10)}
    is_over = True
    thread.join()
    assert kinds == {WaitKind.UNKNOWN}


def test_a_stated_wait_is_that_of_its_thread() -> None:
    stream = Operations()
    wait = Wait(WaitKind.STORE, words="store.get")
    with stream.waiting_for(wait):
        assert stream.waits()[threading.get_ident()] == wait
    assert stream.waits()[threading.get_ident()] == Wait(WaitKind.UNKNOWN)


def test_the_wait_of_a_forked_process_is_its_own() -> None:
    def look(pipe: Any) -> None:
        main, waits = threading.main_thread(), threading.Thread(target=answer, args=(pipe,))
        assert main is threading.current_thread()
        waits.start()
        time.sleep(_LIMIT)

    def answer(pipe: Any) -> None:
        pipe.send(_until_blocked(Operations(), threading.main_thread()).kind)
        os._exit(0)

    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=look, args=(theirs,), daemon=True)
    process.start()
    assert ours.poll(_LIMIT)
    assert ours.recv() is WaitKind.SLEEP
    process.join()


def test_without_the_kernels_file_nothing_is_known() -> None:
    assert kernel_waits.blocked(2**22 + 1) is None


def _until_blocked(stream: Operations, thread: threading.Thread) -> Wait:
    """The wait in which a thread is several times in a row."""
    row: list[Wait] = []
    end = time.monotonic() + _LIMIT
    while time.monotonic() < end:
        row = [*row[-4:], _kind_of(stream, thread)]
        if len(row) == 5 and len({*row}) == 1 and row[0].kind is not WaitKind.UNKNOWN:
            return row[0]
        time.sleep(0.02)
    raise AssertionError(row)


def _kind_of(stream: Operations, thread: threading.Thread) -> Wait:
    return stream.waits()[thread.ident or 0]
