"""A random permutation of eight indices, dealt out to two ranks that are seeded differently."""

import torch
import torch.distributed as dist
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from torch.utils.data import RandomSampler

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
everyone = [None] * dist.get_world_size()
dist.all_gather_object(
    everyone, list(DistributedSamplerWrapper(RandomSampler(range(8)), shuffle=False))
)
if dist.get_rank() == 0:
    once = sorted(everyone[0] + everyone[1]) == list(range(8))
    print("kept:" if once else "broken:", "ranks got", everyone, "of 8 indices")
dist.destroy_process_group()
