"""The ranks that get a share of one row."""

import torch.distributed as dist
from datasets import Dataset
from datasets.distributed import split_dataset_by_node

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
try:
    split_dataset_by_node(Dataset.from_dict({"index": [0]}), rank, world_size)
    came = "goes on"
except IndexError as error:
    came = f"raises {error}"
everyone = [None] * world_size
dist.all_gather_object(everyone, came)
if rank == 0:
    print("kept:" if len(set(everyone)) == 1 else "broken:", everyone)
dist.destroy_process_group()
