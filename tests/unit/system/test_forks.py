"""A rank forks only while its other threads sleep."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from pytest_ddp.system.processes import all_sleep, wait_for_sleep


def task(folder: Path, number: int, state: str, name: str = "pt_gloo_runloop") -> None:
    (folder / str(number)).mkdir()
    (folder / str(number) / "stat").write_text(f"{number} ({name}) {state} 1 1 1 0 -1\n")


@pytest.mark.parametrize(("state", "asleep"), [("S", True), ("D", True), ("R", False)])
def test_state_of_another_thread(tmp_path: Path, state: str, asleep: bool) -> None:
    task(tmp_path, 10, "R")
    task(tmp_path, 11, state)
    assert all_sleep(str(tmp_path), but=10) is asleep


def test_name_with_brackets_and_spaces(tmp_path: Path) -> None:
    task(tmp_path, 10, "R")
    task(tmp_path, 11, "S", name="R) R (R")
    assert all_sleep(str(tmp_path), but=10)


def test_thread_that_has_just_ended(tmp_path: Path) -> None:
    task(tmp_path, 10, "R")
    (tmp_path / "11").mkdir()
    assert all_sleep(str(tmp_path), but=10)


class Native(threading.Thread):
    """Computes without the GIL, for a second and until it is to stop."""

    def __init__(self) -> None:
        super().__init__()
        self.stopped = False

    def run(self) -> None:
        while not self.stopped:
            hashlib.pbkdf2_hmac("sha256", b"key", b"salt", 4_000_000)

    def wait_until_it_computes(self) -> None:
        """Before, it may wait for the GIL, and sleeps."""
        clock = time.pthread_getcpuclockid(self.ident or 0)
        while time.clock_gettime(clock) < 0.05:
            time.sleep(0.001)


def test_it_waits_for_native_work_to_end() -> None:
    thread = Native()
    thread.start()
    thread.wait_until_it_computes()
    thread.stopped = True
    assert not wait_for_sleep(patience=0.0)
    assert wait_for_sleep(patience=60.0)
    thread.join(timeout=0.5)
    assert not thread.is_alive()


def test_it_gives_up_on_a_thread_that_goes_on() -> None:
    thread = Native()
    thread.start()
    thread.wait_until_it_computes()
    assert not wait_for_sleep(patience=0.0)
    thread.stopped = True
    thread.join()


def test_a_process_without_threads_forks_at_once() -> None:
    if len(os.listdir("/proc/self/task")) == 1:
        assert wait_for_sleep(patience=0.0)
