"""A pytest plugin: each test once for each list of delays, and the delays themselves.

Programs which are run with it are copies, that call ``late(line)`` before each statement. A delay
is a plain sleep: on one rank, before one line, when that line is reached for the ``nth`` time.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

DELAYS = json.loads(Path(os.environ["RACES_DELAYS"]).read_text())
"""By the name of the file, the runs of its tests: each is a name and a list of delays."""

_lock = threading.Lock()
_pending = []
_reached = {}


def pytest_generate_tests(metafunc):
    runs = DELAYS[metafunc.module.__name__.rpartition(".")[2]]
    ids = [name for name, _ in runs]
    metafunc.fixturenames.append("_delays")
    metafunc.parametrize("_delays", [delays for _, delays in runs], ids=ids, indirect=True)


@pytest.fixture
def _delays(request):
    _reached.clear()
    _pending[:] = request.param
    yield
    _pending.clear()


def late(line):
    """Sleep where the run has a delay here."""
    if not _pending:
        return
    with _lock:
        _reached[line] = nth = _reached.get(line, 0) + 1
        found = [d for d in _pending if d["line"] == line and d["nth"] in (0, nth)]
    rank = int(os.environ.get("RANK", "0"))
    for delay in found:
        if delay["rank"] == rank:
            time.sleep(delay["seconds"])
