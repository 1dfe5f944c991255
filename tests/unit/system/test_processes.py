"""What is read of real processes, and how their groups are ended."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from pytest_ddp.system import processes

LIMIT = 30.0
"""Seconds that a child may take; only a broken one takes as long."""
Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a Python child that leads a session; it has printed "up" when this returns."""
    started: list[subprocess.Popen[str]] = []

    def python(code: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", f"print('up', flush=True)\n{code}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(child)
        assert said(child) == "up"
        return child

    yield python
    for child in started:
        processes.kill_group(child.pid)
        child.communicate(timeout=LIMIT)


def said(child: subprocess.Popen[str]) -> str:
    """The next line of a child."""
    assert child.stdout is not None
    line = ""
    while not line.endswith("\n"):  # unbuffered: select sees nothing of what a buffer holds
        ready, _, _ = select.select([child.stdout], [], [], LIMIT)
        assert ready, f"the child said nothing for {LIMIT:.0f} s"
        byte = os.read(child.stdout.fileno(), 1)
        assert byte, f"the child ended after {line!r}"
        line += byte.decode()
    return line.strip()


def ends(pid: int) -> bool:
    """True once a process is gone or a zombie; waits for it."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ready, _, _ = select.select([descriptor], [], [], LIMIT)
    os.close(descriptor)
    return bool(ready)


WAIT = "import sys; sys.stdin.read()"
FORK = """
import os, signal
pid = os.fork()
if pid == 0:
    signal.pause()
print(pid, flush=True)
signal.pause()
"""


def test_look_at_a_living_process(start: Start) -> None:
    child = start(WAIT)
    seen = processes.process_of(child.pid)
    assert seen is not None
    assert (seen.pid, seen.parent, seen.session) == (child.pid, os.getpid(), child.pid)
    assert seen.command.startswith(f"{sys.executable} -S -c print('up'")


def test_look_at_oneself() -> None:
    seen = processes.process_of(os.getpid())
    assert seen is not None
    assert (seen.parent, seen.session) == (os.getppid(), os.getsid(0))


def test_look_at_a_zombie_and_at_nothing(start: Start) -> None:
    child = start("")
    assert ends(child.pid)
    assert processes.process_of(child.pid) is None, "a zombie"
    child.wait(LIMIT)
    assert processes.process_of(child.pid) is None


@pytest.mark.parametrize("name", ["a) S 1 2 3 (b", "two words"])
def test_name_with_brackets_does_not_confuse(start: Start, name: str) -> None:
    rename = f"open('/proc/self/comm', 'w').write({name!r}); print('named', flush=True)"
    child = start(f"{rename}\n{WAIT}")
    assert said(child) == "named"
    seen = processes.process_of(child.pid)
    assert seen is not None
    assert (seen.parent, seen.session) == (os.getpid(), child.pid)


def test_children_are_the_living_ones(start: Start) -> None:
    known = {process.pid for process in processes.children()}
    living, dead = start(WAIT), start("")
    assert ends(dead.pid)
    found = {process.pid for process in processes.children()} - known
    assert found == {living.pid}
    assert {p.pid for p in processes.children(os.getpid())} - known == found


def test_children_of_another_process(start: Start) -> None:
    child = start(FORK)
    grandchild = int(said(child))
    (seen,) = processes.children(child.pid)
    assert (seen.pid, seen.parent, seen.session) == (grandchild, child.pid, child.pid)
    assert processes.children(grandchild) == []


def test_children_of_a_process_that_is_gone(start: Start) -> None:
    child = start("")
    child.wait(LIMIT)
    assert processes.children(child.pid) == []


def test_process_without_children_has_none(start: Start) -> None:
    child = start(
        "from pytest_ddp.system import processes; print(processes.children(), flush=True);" + WAIT
    )
    assert said(child) == "[]"


def test_looking_for_children_reaps_none(start: Start) -> None:
    child = start("raise SystemExit(7)")
    assert ends(child.pid)
    processes.children()
    assert child.wait(LIMIT) == 7


def test_the_first_end_ends_a_wait(start: Start) -> None:
    living, ended = start(WAIT), start(WAIT)
    begin = time.monotonic()
    processes.wait_for_end([living.pid], 0.2)
    assert time.monotonic() - begin >= 0.2
    ended.kill()
    processes.wait_for_end([living.pid, ended.pid], LIMIT)
    ended.wait()
    processes.wait_for_end([living.pid, ended.pid], LIMIT)
    assert time.monotonic() - begin < LIMIT


def test_kill_group_takes_the_grandchildren_along(start: Start) -> None:
    child = start(FORK)
    grandchild = int(said(child))
    processes.kill_group(child.pid)
    assert child.wait(LIMIT) == -signal.SIGKILL
    assert ends(grandchild)


def test_kill_group_of_nobody(start: Start) -> None:
    child = start("")
    child.wait(LIMIT)
    processes.kill_group(child.pid)


def orphan(prepare: str) -> str:
    """A middle process whose child prints what becomes of it when the middle one dies."""
    return f"""
import os, signal
from pytest_ddp.system import processes
parent = os.getpid()
pid = os.fork()
if pid == 0:
    {prepare}
    print(os.getpid(), flush=True)
    signal.pause()
signal.pause()
"""


def test_child_dies_with_its_parent(start: Start) -> None:
    child = start(orphan("processes.die_with_parent(parent)"))
    grandchild = int(said(child))
    child.kill()
    assert ends(grandchild)


def test_child_whose_parent_is_gone_already_dies_at_once(start: Start) -> None:
    child = start("from pytest_ddp.system import processes\nprocesses.die_with_parent(1 << 22)\n")
    assert child.wait(LIMIT) == -signal.SIGKILL


def test_child_may_outlive_its_parent_again(start: Start) -> None:
    child = start(orphan("processes.die_with_parent(parent); processes.outlive_parent()"))
    grandchild = int(said(child))
    child.kill()
    child.wait(LIMIT)
    assert processes.process_of(grandchild) is not None
    os.kill(grandchild, signal.SIGKILL)
    assert ends(grandchild)


def test_orphans_are_adopted(start: Start) -> None:
    child = start(
        """
import os
from pytest_ddp.system import processes
processes.adopt_orphans()
reading, writing = os.pipe()
middle = os.fork()
if middle == 0:
    if os.fork():
        os._exit(0)
    os.close(writing)
    os.read(reading, 1)
    os._exit(os.getppid() % 251)
os.waitpid(middle, 0)
os.close(writing)
_, status = os.wait()
print(os.waitstatus_to_exitcode(status), os.getpid() % 251, flush=True)
"""
    )
    status, own = said(child).split()
    assert status == own
