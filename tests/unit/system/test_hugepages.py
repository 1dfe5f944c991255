"""Memory in huge pages, as the kernel reports it for a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PROGRAM = """
import os
from pathlib import Path
from pytest_ddp.system import processes as hugepages

def huge():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))

kept = [os.urandom(1 << 16) for _ in range(256)]
copies = [bytearray(block) for block in kept]
before = huge()
hugepages.collapse()
gained = huge() - before
if (child := os.fork()) == 0:
    copies[0][:] = bytes(1 << 16)
    os._exit(any(bytes(copy) != block for copy, block in zip(copies[1:], kept[1:])))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert list(map(bytes, copies)) == kept
print(gained)
"""


def can_collapse() -> bool:
    major, minor = map(int, os.uname().release.split(".")[:2])
    return (major, minor) >= (6, 1) and _SWITCH.exists()


def test_content_stays_and_forks_have_their_own() -> None:
    words = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    if not can_collapse():
        pytest.skip("this kernel collapses no memory when asked")
    assert int(done.stdout) >= 4096, "KiB of some 32 MiB"
