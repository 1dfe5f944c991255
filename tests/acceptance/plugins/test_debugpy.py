"""Breakpoints of an editor in ranks, by debugpy's own adapter."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.plugins.adapter import Client, Session
from tests.acceptance.plugins.test_zoo import PLACE
from tests.acceptance.suite import UNDER_XDIST, Suite

pytestmark = pytest.mark.skipif(UNDER_XDIST, reason="one session, whose arguments are its own")

SOURCE = """
    import datetime

    import pytest
    import torch
    import torch.distributed as dist

    @pytest.mark.ddp(world_size=2, timeout=2, init=False)
    def test_stops_on_one_rank(ddp):
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
        total = torch.tensor(40.0 + ddp.rank)
        dist.barrier()
        if ddp.rank == 1:
            total += 1  # the breakpoint
        ddp.barrier()
        dist.all_reduce(total)
        dist.barrier()
        dist.destroy_process_group()
        assert total.item() == 82

    @pytest.mark.ddp(world_size=2)
    def test_fails(ddp):
        assert ddp.rank == 0
"""
HELD = 5
"""Seconds at the breakpoint: more than the test has, and than others are given after a failure."""


@pytest.fixture
def session(suite: Suite) -> Iterator[Session]:
    file = suite.write("test_suite.py", SOURCE)
    line = 1 + next(n for n, text in enumerate(_lines(file)) if "the breakpoint" in text)
    env = {"PYTHONPATH": os.fspath(PLACE), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    args = ("-p", "ddp", "-p", "no:cacheprovider")
    found = Session(suite.directory, args, env, {file: line})
    yield found
    found.end()


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def test_a_rank_stops_at_a_breakpoint_and_no_clock_runs(session: Session) -> None:
    frames: list[str] = []
    ranks: list[str] = []

    def look() -> None:
        client: Client = session.stopped.get()
        thread = client.ask("threads")["threads"][0]["id"]
        stack = client.ask("stackTrace", threadId=thread)["stackFrames"]
        frames.extend(frame["name"] for frame in stack)
        found = client.ask("evaluate", expression="ddp.rank", frameId=stack[0]["id"])
        ranks.append(found["result"])
        threading.Event().wait(HELD)
        client.ask("continue", threadId=thread)

    threading.Thread(target=look, daemon=True).start()
    code = session.follow()
    assert ranks == ["1"], session.output
    assert frames[0] == "test_stops_on_one_rank"
    assert "1 failed, 1 passed" in session.output
    assert "rank 1 of 2 failed in call: assert 1 == 0" in session.output
    assert "ranks are spawned" not in session.output
    assert code == 1
