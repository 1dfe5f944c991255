"""A signal from outside meets whom it is meant for: otherwise a kind of death is never seen."""

from __future__ import annotations

import time
from pathlib import Path

from tests.acceptance.suite import Suite
from tests.chaos.processes import targets

SOURCE = """
import os
import time
import wave  # nobody has it yet: the host of shared imports is a fork that tries it
from pathlib import Path

import pytest


@pytest.mark.ddp(world_size=2)
def test_waits_for_the_outer_test(ddp):
    Path(f"rank-{ddp.rank}.part").write_text(f"{os.getppid()} {os.getpid()}")
    Path(f"rank-{ddp.rank}.part").rename(f"rank-{ddp.rank}")
    while not Path("go").exists():
        time.sleep(0.05)
"""
PATIENCE = 120


def test_hosts_and_ranks_are_distinguished(tmp_path: Path) -> None:
    suite = Suite(tmp_path / "suite")
    suite.write("test_it.py", SOURCE)
    running = suite.start()
    ranks = [suite.directory / "rank-0", suite.directory / "rank-1"]
    ends = time.monotonic() + PATIENCE
    while not all(map(Path.exists, ranks)) and time.monotonic() < ends:
        assert running.process.poll() is None, running.stdout
        time.sleep(0.05)
    found = {kind: targets(running.pid, kind) for kind in ("pytest", "host", "rank")}
    (suite.directory / "go").touch()
    running.finish(PATIENCE)
    parents, pids = zip(*(map(int, rank.read_text().split()) for rank in ranks), strict=True)
    assert found["pytest"] == [running.pid]
    assert sorted(found["rank"]) == sorted(pids)
    assert len(found["host"]) == 2
    assert set(parents) < set(found["host"])
