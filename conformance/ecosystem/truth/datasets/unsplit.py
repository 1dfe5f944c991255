"""A stream of four shards in a DataLoader of two workers, on two ranks."""

import torch.distributed as dist
from datasets import IterableDataset
from torch.utils.data import DataLoader


def examples(shards):
    for shard in shards:
        yield {"index": shard}


dist.init_process_group("gloo")
stream = IterableDataset.from_generator(examples, gen_kwargs={"shards": [0, 1, 2, 3]})
everyone = [None] * dist.get_world_size()
read = sorted(int(batch["index"]) for batch in DataLoader(stream, num_workers=2))
dist.all_gather_object(everyone, read)
if dist.get_rank() == 0:
    once = sorted(everyone[0] + everyone[1]) == [0, 1, 2, 3]
    print("kept:" if once else "broken:", "ranks read", everyone)
dist.destroy_process_group()
