"""One more test on many ranks, in processor time of pytest and coordinator."""

import contextlib
import json
import os
import time
from pathlib import Path

import pytest

COUNT = int(os.environ["BENCHMARK_COUNT"])
WORLD_SIZE = int(os.environ["BENCHMARK_WORLD_SIZE"])
WARM = int(os.environ["BENCHMARK_WARM"])
_begun = {}


def _of_coordinator():
    """Seconds that the coordinator, which has one thread, was on a processor; 0 where there is
    none."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and _is_ours(entry):
                return int((entry / "schedstat").read_text().split()[0]) / 1e9
    return 0.0


def _is_ours(entry):
    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return parent == os.getpid() and b"machines.main" in (entry / "cmdline").read_bytes()


def _now():
    return {"pytest": time.process_time(), "coordinator": _of_coordinator()}


@pytest.mark.ddp(world_size=WORLD_SIZE, init=False, timeout=120)
@pytest.mark.parametrize("number", range(WARM))
def test_warm(number):
    pass


def test_begin():
    _begun.update(_now())


@pytest.mark.ddp(world_size=WORLD_SIZE, init=False, timeout=120)
@pytest.mark.parametrize("number", range(COUNT))
def test_counts(number):
    pass


def test_end():
    spent = {name: (value - _begun[name]) / COUNT for name, value in _now().items()}
    Path(os.environ["BENCHMARK_RESULTS"]).write_text(json.dumps(spent))
