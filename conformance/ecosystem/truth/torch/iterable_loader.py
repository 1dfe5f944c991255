"""A stream that is split by get_worker_info(), read by two ranks."""

import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Split(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        return iter(range(6)) if info is None else iter(range(info.id, 6, info.num_workers))


dist.init_process_group("gloo")
everyone = [None] * dist.get_world_size()
dist.all_gather_object(everyone, sorted(int(n) for n in DataLoader(Split(), num_workers=2)))
if dist.get_rank() == 0:
    once = sorted(everyone[0] + everyone[1]) == list(range(6))
    print("kept:" if once else "broken:", "ranks read", everyone)
dist.destroy_process_group()
