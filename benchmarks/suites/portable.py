"""Times a training step of DDP with the watch of ``portable=`` and without.

The time that the thread itself computes, on one rank, which issues what each of several does: on a
busy machine, most of what a clock shows is the wait for other processes.
"""

import json
import os
import time

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from pytest_ddp.extensions.portable.options import Production
from pytest_ddp.extensions.portable.watch import OperationWatch

BLOCKS = 20


@pytest.mark.ddp(world_size=1, timeout=600)
def test_cost(ddp):
    steps = int(os.environ["BENCHMARK_COUNT"]) // BLOCKS
    layers = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.ones(32, 64)
    found = {"without": [], "with": []}

    def measure(spent):
        for _ in range(steps):
            before = time.thread_time_ns()
            model(inputs).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            spent.append(time.thread_time_ns() - before)

    # In turns, since the machine's pace changes.
    for _ in range(BLOCKS):
        measure(found["without"])
        watch = OperationWatch(Production("nccl"), default_group_was_used=False)
        watch.start()
        measure(found["with"])
        watch.stop()
    with open(os.environ["BENCHMARK_RESULTS"], "w") as file:
        json.dump(found, file)
