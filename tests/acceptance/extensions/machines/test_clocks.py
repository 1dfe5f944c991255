"""Machines with clocks of their own: a time namespace has another monotonic clock.

There is none for wall clocks: node 1's is shifted in Python, for its agent and its ranks, but not
in C++, where torch's flight recorder reads it for a trace.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.acceptance.extensions.machines.cluster import Cluster, Session
from tests.acceptance.suite import INNER, Suite, flat

AHEAD = 100_000
BEHIND = 7200
"""Seconds of node 1's monotonic clock, and of its wall clock."""
SHIFT = f"""
    import time

    def behind(now, by):
        return lambda: now() - by

    time.time = behind(time.time, {BEHIND})
    time.time_ns = behind(time.time_ns, {BEHIND} * 10**9)
"""
TIMES = """
    import json

    def pytest_configure(config):
        global is_rank
        is_rank = hasattr(config, "workerinput")

    def pytest_runtest_logreport(report):
        if is_rank:
            return
        with open("times.jsonl", "a") as file:
            file.write(json.dumps([report.nodeid, report.start, report.stop]) + "\\n")
"""
EXAMPLES = """
    import os
    import signal
    import time

    import pytest
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=4, timeout=60)


    def test_waits(ddp):
        for late in range(4):
            if ddp.rank == late:
                time.sleep(0.2)
            dist.barrier()


    def test_deadlock(ddp):
        dist.barrier()
        if ddp.rank != 3:
            dist.barrier()


    def test_late(ddp):
        if ddp.rank == 3:
            time.sleep(0.5)
        assert ddp.rank != 0 and ddp.rank != 3


    def test_machine_is_lost(ddp):
        dist.barrier()
        if ddp.rank == 3:
            host = open(f"/proc/{os.getppid()}/stat").read()
            os.kill(int(host.rpartition(")")[2].split()[1]), signal.SIGKILL)
            signal.pause()
        dist.barrier()
"""


@pytest.fixture(scope="module")
def session(cluster: Cluster, new_suite: Callable[[], Suite]) -> Session:
    suite = new_suite()
    suite.write("test_clocks.py", EXAMPLES)
    return cluster.run(suite, "--ddp-trace=traces", ahead_1=AHEAD)


def trace_of(session: Session, name: str) -> dict[str, Any]:
    (file,) = (session.alpha.directory / "traces").glob(f"*{name}-*.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def calls(trace: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """Each collective as its ranks have it."""
    found: dict[str, list[dict[str, Any]]] = {}
    for event in trace["traceEvents"]:
        if event.get("cat") == "collective":
            found.setdefault(event["name"], []).append(event)
    yield from found.values()


def test_nobody_leaves_a_barrier_before_all_have_come(session: Session) -> None:
    trace = trace_of(session, "test_waits")
    (uncertainty,) = trace["otherData"]["clock_uncertainty_us"].values()
    assert 0 < uncertainty < 1e6
    barriers = [call for call in calls(trace) if call[0]["name"].startswith("barrier")]
    assert [len(barrier) for barrier in barriers] == [4] * 4, trace
    for barrier in barriers:
        came = max(event["ts"] for event in barrier)
        left = min(event["ts"] + event["dur"] for event in barrier)
        assert came <= left + uncertainty
        assert max(event["dur"] for event in barrier) > 0.1e6, "one was waited for"


@pytest.mark.parametrize("name", ["test_waits", "test_deadlock", "test_late"])
def test_all_happens_while_the_test_runs(session: Session, name: str) -> None:
    trace = trace_of(session, name)
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {event["pid"] for event in slices} == {0, 1, 2, 3}
    for event in slices:
        assert -1e6 < event["ts"] < 30e6
        assert 0 <= event["dur"] < 30e6


def test_each_rank_is_named_with_its_machine(session: Session) -> None:
    names = [
        event["args"]["name"]
        for event in trace_of(session, "test_waits")["traceEvents"]
        if event["name"] == "process_name"
    ]
    alpha, beta = "node 0 (alpha)", "node 1 (beta)"
    assert names == [f"rank 0, {alpha}", f"rank 1, {alpha}", f"rank 2, {beta}", f"rank 3, {beta}"]


def test_the_page_shows_how_exact_its_times_are(session: Session) -> None:
    (page,) = (session.alpha.directory / "traces").glob("*test_deadlock-*.html")
    assert "times of node 1 (beta) ±" in page.read_text()


def test_what_a_lost_machine_had_is_marked_as_lost(session: Session) -> None:
    trace = trace_of(session, "test_machine_is_lost")
    assert trace["otherData"]["lost_machines"] == ["node 1 (beta)"]
    assert [event["pid"] for event in trace["traceEvents"] if event.get("cat") == "end"]


def test_reports_have_times_of_node_0(cluster: Cluster, suite: Suite) -> None:
    suite.write("test_clocks.py", EXAMPLES)
    suite.write("conftest.py", TIMES)
    suite.write("shift/sitecustomize.py", SHIFT)
    path = os.pathsep.join(map(str, (INNER, suite.directory / "shift")))
    began, of_beta = time.time(), {"PYTHONPATH": path}
    session = cluster.run(suite, "-k", "waits or late", ahead_1=AHEAD, of={1: of_beta})
    lines = (suite.directory / "times.jsonl").read_text().splitlines()
    times = [json.loads(line) for line in lines]
    assert len(times) == 6, session.text
    for nodeid, start, stop in times:
        assert began < start <= stop < time.time(), nodeid


def test_the_first_failure_is_the_first_on_whatever_machine(session: Session) -> None:
    text = flat(session.alpha["test_late"].text)
    assert text.index("rank 0") < text.index("rank 3"), text
