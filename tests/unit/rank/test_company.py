"""The threads that a test is reported to have left."""

from __future__ import annotations

import _thread
import threading

from pytest_ddp.rank.cleanup.cleanup import LiveResources


def test_a_thread_that_python_has_not_started_is_not_asked_whether_it_lives() -> None:
    seen: list[threading.Thread] = []
    there, leave = threading.Event(), threading.Event()

    def call_in() -> None:
        seen.append(threading.current_thread())
        there.set()
        leave.wait(60)

    _thread.start_new_thread(call_in, ())
    assert there.wait(60)
    try:
        assert seen[0] in threading.enumerate()
        assert seen[0] not in LiveResources.now().threads
    finally:
        leave.set()


def test_a_thread_that_python_has_started_counts() -> None:
    leave = threading.Event()
    thread = threading.Thread(target=leave.wait, args=(60,), name="left by a test")
    thread.start()
    try:
        assert thread in LiveResources.now().threads
    finally:
        leave.set()
        thread.join()
