"""Five samples on two ranks: DistributedSampler evaluates six."""

import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
loader = DataLoader(range(5), sampler=DistributedSampler(range(5), shuffle=False))
everyone = [None] * dist.get_world_size()
dist.all_gather_object(everyone, [int(index) for index in loader])
if dist.get_rank() == 0:
    counted = sorted(index for own in everyone for index in own)
    print("kept:" if counted == [0, 1, 2, 3, 4] else "broken:", counted, "of five samples")
dist.destroy_process_group()
