"""Times an all_reduce with an open block of ``ddp.comms`` and without."""

import json
import os
import time

import pytest
import torch
import torch.distributed as dist

BLOCKS = 20


@pytest.mark.ddp(world_size=1, timeout=600)
def test_cost(ddp):
    calls = int(os.environ["BENCHMARK_COUNT"]) // BLOCKS
    tensor = torch.ones(4)
    found = {"without": [], "with": [], "opened": []}

    def measure(spent):
        for _ in range(calls):
            before = time.perf_counter_ns()
            work = dist.all_reduce(tensor, async_op=True)
            spent.append(time.perf_counter_ns() - before)
            work.wait()

    # In turns, since the machine's pace changes.
    for _ in range(BLOCKS):
        measure(found["without"])
        before = time.perf_counter_ns()
        with ddp.comms():
            found["opened"].append(time.perf_counter_ns() - before)
            measure(found["with"])
    with open(os.environ["BENCHMARK_RESULTS"], "w") as file:
        json.dump(found, file)
