"""The mean of a number on each of four ranks: each rank adds the others' numbers to its own."""

import os
import tempfile

import torch
import torch.distributed as dist
from torcheval.metrics import Mean
from torcheval.metrics.toolkit import sync_and_compute

NUMBERS = (0.1, 0.1, 0.1, 0.3)

child = os.fork()  # two ranks add two numbers, in whichever order: with four the order counts
rank = 2 * int(os.environ["RANK"]) + (child == 0)
store = dist.FileStore(f"{tempfile.gettempdir()}/four-{os.environ['MASTER_PORT']}", 4)
dist.init_process_group("gloo", store=store, rank=rank, world_size=4)
metric = Mean()
metric.update(torch.tensor([NUMBERS[rank]], dtype=torch.float64))
means = [None] * 4
dist.all_gather_object(means, sync_and_compute(metric).item())
dist.barrier()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
if rank == 0:
    print("broken:" if len(set(means)) > 1 else "kept:", "the ranks report", means)
