"""The end of a host: no process is left, however slow the machine is."""

from __future__ import annotations

from tests.warm import interpreter

SLOW_KILL = """
import subprocess, sys, time
from pytest_ddp.rank import forking
from pytest_ddp.system import processes

# A busy machine, on which a killed process disappears later than a tracker is waited for.
begin, at_once = time.monotonic(), forking.kill
forking.kill = lambda pid: time.monotonic() > begin + 1.5 and at_once(pid)
host = forking.RankHost(None, None)
sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
for _ in range(2):
    subprocess.Popen(sleeper)
host._end_all()
assert not processes.has_children()
"""

TRACKER = """
import subprocess, sys
from pytest_ddp.rank import forking
from pytest_ddp.system import processes

host = forking.RankHost(None, None)
code = f"import time; time.sleep(60)  # {forking.TRACKER}"
tracker = subprocess.Popen([sys.executable, "-c", code])
host._end_all()
assert [child.pid for child in processes.children()] == [tracker.pid]
tracker.kill()
"""


def test_killed_processes_are_waited_for() -> None:
    run = interpreter.run(("-c", SLOW_KILL), timeout=60)
    assert run.returncode == 0, run.stderr


def test_a_tracker_is_neither_killed_nor_waited_for() -> None:
    run = interpreter.run(("-c", TRACKER), timeout=60)
    assert run.returncode == 0, run.stderr
