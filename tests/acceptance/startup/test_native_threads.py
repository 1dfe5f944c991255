"""Threads that a library starts when it is imported, of which Python does not know."""

from __future__ import annotations

import os
from pathlib import Path

from tests.acceptance.startup.environment_examples import install
from tests.acceptance.suite import INNER, Finished, Suite

THREAD = """
import _thread, ctypes, os, threading

PID = os.getpid()
lock = threading.Lock()
lock.acquire()

def work():
    ctypes.CDLL(None).prctl(15, b"{name}", 0, 0, 0)
    lock.acquire()

_thread.start_new_thread(work, ())
"""
TEST = """
import os

import library, plugin
import pytest


@pytest.mark.ddp
def test_imported_once(ddp):
    assert os.getpid() not in (library.PID, plugin.PID)
"""


def run(suite: Suite, plugin: str, library: str) -> Finished:
    site = Path(f"{suite.directory}-outside") / "site-packages"
    install(site, "plugin", THREAD.format(name=plugin), entry_point="pytest11")
    install(site, "library", THREAD.format(name=library))
    suite.write("test_it.py", TEST)
    path = os.pathsep.join(map(str, (INNER, site)))
    return suite.run(env={"PYTHONPATH": path}, extra=(), timeout=90)


def test_threads_of_jemalloc_do_not_hinder(suite: Suite) -> None:
    """pyarrow starts them, and so does pandas 3."""
    finished = run(suite, "jemalloc_bg_thd", "jemalloc_bg_thd")
    finished.assert_outcomes(passed=1)
    assert not [text for text in finished.warnings if "ranks are spawned" in text]


def test_another_library_with_threads_is_imported_by_each_rank(suite: Suite) -> None:
    finished = run(suite, "jemalloc_bg_thd", "own_pool")
    finished.assert_outcomes(failed=1)
    assert not [text for text in finished.warnings if "ranks are spawned" in text]


def test_a_thread_that_hinders_is_named_with_the_import(suite: Suite) -> None:
    finished = run(suite, "own_pool", "jemalloc_bg_thd")
    (warning,) = (text for text in finished.warnings if "ranks are spawned" in text)
    assert "own_pool, a native one" in warning
    assert "import of a library" in warning
