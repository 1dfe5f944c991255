"""The ranks that get a share of one sample."""

import torch.distributed as dist
from lightning.pytorch.overrides.distributed import UnrepeatedDistributedSampler

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
try:
    UnrepeatedDistributedSampler([0], num_replicas=world_size, rank=rank, shuffle=False)
    came = "goes on"
except AssertionError:
    came = "raises"
everyone = [None] * world_size
dist.all_gather_object(everyone, came)
if rank == 0:
    print("kept:" if len(set(everyone)) == 1 else "broken:", everyone)
dist.destroy_process_group()
