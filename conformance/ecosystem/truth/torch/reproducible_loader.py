"""What the workers of two ranks draw, with the recipe of torch's page on reproducibility."""

import random

import numpy
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler


def seed_worker(worker_id):
    worker_seed = torch.initial_seed() % 2**32
    numpy.random.seed(worker_seed)
    random.seed(worker_seed)


def augment(samples):
    return random.random(), float(torch.rand(1))


dist.init_process_group("gloo")
g = torch.Generator()
g.manual_seed(0)
sampler = DistributedSampler(range(8))
options = {"worker_init_fn": seed_worker, "generator": g, "num_workers": 1}
drawn = list(DataLoader(range(8), sampler=sampler, collate_fn=augment, **options))
everyone = [None] * dist.get_world_size()
dist.all_gather_object(everyone, drawn)
if dist.get_rank() == 0:
    print("broken:" if everyone[0] == everyone[1] else "kept:", "ranks drew", everyone)
dist.destroy_process_group()
