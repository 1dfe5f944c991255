"""A pytest plugin: each test once for each list of delays, and the delays themselves.

Programs which are run with it are copies, that call ``late(line)`` before each statement. A delay
is a plain sleep: on one rank, before one line, when that line is reached for the ``nth`` time.
"""

from __future__ import annotations

import json
import os
import pkgutil
import threading
import time
from pathlib import Path

import pytest

DELAYS = json.loads(Path(os.environ["RACES_DELAYS"]).read_text())
"""The runs of a file's tests, by the file's name: each run is a name and a list of delays."""

_lock = threading.Lock()
_pending = []
_reached = {}


def pytest_generate_tests(metafunc):
    runs = DELAYS[metafunc.module.__name__.rpartition(".")[2]]
    ids = [name for name, _ in runs]
    metafunc.parametrize("_delays", [delays for _, delays in runs], ids=ids, indirect=True)


@pytest.fixture(autouse=True)
def _delays(request, monkeypatch):
    _reached.clear()
    _pending[:] = request.param
    for call in {delay["call"] for delay in _pending if delay["call"]}:
        monkeypatch.setattr(call, _late_in(call, pkgutil.resolve_name(call)))
    yield
    _pending.clear()


def _late_in(call, function):
    def slowed(*arguments, **named):
        _sleep(call)
        return function(*arguments, **named)

    return slowed


def late(line):
    """Sleep where the run has a delay here."""
    if _pending:
        _sleep(line)


def _sleep(place):
    with _lock:
        _reached[place] = nth = _reached.get(place, 0) + 1
        found = [
            delay
            for delay in _pending
            if (delay["call"] or delay["line"]) == place and delay["nth"] in (0, nth)
        ]
    rank = int(os.environ.get("RANK", "0"))
    for delay in found:
        if delay["rank"] == rank:
            time.sleep(delay["seconds"])
