"""Frames of all threads are read without a deadlock, whatever the garbage collector sets off."""

from __future__ import annotations

import gc
import sys
import threading

import pytest

from pytest_ddp.system import frames
from pytest_ddp.system.frames import current_frames
from tests.warm import interpreter

COLLECTS = """
import gc, threading
from pytest_ddp.rank.operations.origins import stack_of
from pytest_ddp.system.frames import current_frames

class Cycle:
    def __init__(self):
        self.own, self.local = self, threading.local()

here, before = threading.get_ident(), gc.get_threshold()
for objects in range(1, 30):
    leave = threading.Event()
    # Each thread has a frame that is no object yet.
    threads = [threading.Thread(target=leave.wait) for _ in range(12)]
    for thread in threads:
        thread.start()
    gc.collect(0)
    Cycle()
    gc.set_threshold(objects)
    {read}
    gc.set_threshold(*before)
    leave.set()
    for thread in threads:
        thread.join()
"""


@pytest.mark.parametrize("read", ["current_frames()", "stack_of(here)"])
def test_a_collection_may_free_the_data_of_threads(read: str) -> None:
    done = interpreter.run(("-c", COLLECTS.format(read=read)), timeout=40)
    assert done.returncode == 0, done.stderr


def test_the_collector_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_COLLECTS_INSIDE", True)
    assert current_frames()[threading.get_ident()].f_back is sys._getframe()
    assert gc.isenabled()
    gc.disable()
    try:
        current_frames()
        assert not gc.isenabled()
    finally:
        gc.enable()
