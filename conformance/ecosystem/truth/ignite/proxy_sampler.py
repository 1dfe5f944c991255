"""A sampler that shuffles with python's generator, dealt out to two ranks."""

import random

import torch.distributed as dist
from ignite.distributed.auto import DistributedProxySampler
from torch.utils.data import Sampler


class Shuffled(Sampler):
    def __len__(self):
        return 8

    def __iter__(self):
        return iter(random.sample(range(8), 8))


dist.init_process_group("gloo")
random.seed(dist.get_rank())
everyone = [None] * dist.get_world_size()
dist.all_gather_object(everyone, list(DistributedProxySampler(Shuffled())))
if dist.get_rank() == 0:
    once = sorted(everyone[0] + everyone[1]) == list(range(8))
    print("kept:" if once else "broken:", "ranks got", everyone, "of 8 indices")
dist.destroy_process_group()
