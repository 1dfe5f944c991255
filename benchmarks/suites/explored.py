"""A small training with checkpoints, as ``--ddp-explore`` sees it, and how long its runs take.

Also a plugin of pytest: it makes runs without recording before those of ``--ddp-explore``, and
times all from outside.
"""

import json
import os
import time

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from pytest_ddp.extensions.explore import EXTENSION
from pytest_ddp.extensions.explore.options import RUNS
from pytest_ddp.session.planned_runs import PlannedRun

WORLD_SIZE = int(os.environ["BENCHMARK_WORLD_SIZE"])
TESTS = int(os.environ["BENCHMARK_COUNT"])
STEPS = 20
ORDINARY = 3
"""Runs of each test; the first starts ranks without hooks."""


@pytest.mark.ddp(world_size=WORLD_SIZE, timeout=120)
@pytest.mark.parametrize("number", range(TESTS))
def test_training(ddp, tmp_path, number):
    torch.manual_seed(number)
    model = DistributedDataParallel(torch.nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    folder = tmp_path / "checkpoints"
    folder.mkdir(exist_ok=True)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(256, 256)).sum().backward()
        optimizer.step()
        if step % 5 == 4:
            torch.save(model.state_dict(), folder / f"{step}-{ddp.rank}.pt")
            dist.barrier()
            torch.load(folder / f"{step}-{(ddp.rank + 1) % ddp.world_size}.pt")


class Times:
    """Seconds of each run, by its kind."""

    def __init__(self):
        self.found = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_ddp_plan_runs(self, item):
        plan = yield
        return plan and type(plan)(self._timed(item, plan.runs), plan.reruns)

    def _timed(self, item, runs):
        for number in range(ORDINARY):
            yield from self._run(
                PlannedRun("ordinary"), "first ordinary" if not number else "ordinary"
            )
        planned, kinds = next(runs), ["recorded", "first recorded"]
        while True:
            holds = planned.sent[EXTENSION]["holds"]
            result = yield from self._run(planned, "held" if holds else kinds.pop())
            if holds:
                board = item.stash[RUNS]._board
                seconds = [board.seconds(place) for place in range(len(holds))]
                self.found[-1] |= {
                    "hold": sum(seconds),
                    "late": [
                        lateness(result.sent, hold, seconds[place])
                        if board.turn(place).name == "OVER"
                        else None
                        for place, hold in enumerate(holds)
                    ],
                    "how": [board.turn(place).name for place in range(len(holds))],
                    "schedule": planned.name,
                }
            try:
                planned = runs.send(result)
            except StopIteration as end:
                return end.value

    def _run(self, planned, kind):
        begin = time.perf_counter()
        result = yield planned
        seconds = time.perf_counter() - begin
        assert all(report.passed for report in result.reports), result.reports
        self.found.append({"kind": kind, "seconds": seconds})
        return result

    def pytest_sessionfinish(self):
        with open(os.environ["BENCHMARK_RESULTS"], "w") as file:
            json.dump(self.found, file)


def lateness(sent, hold, seconds):
    """Seconds from the last event of the others, or the begin of the hold, until it ended."""
    _, rank, thread, point, number, *_ = hold
    rows = {
        (each, other): events
        for each, found in sent.items()
        for other, events in found[EXTENSION]["threads"]
    }
    ended = [row[0] for row in rows.pop((rank, thread)) if list(row[1:3]) == [point, number]]
    if not ended:  # the test was over before
        return None
    before = [row[0] for events in rows.values() for row in events if row[0] < ended[0]]
    return ended[0] - max([ended[0] - seconds, *before])


def pytest_collection_finish(session):
    if "RANK" not in os.environ:
        session.config.pluginmanager.register(Times(), "benchmark-times")
