"""BatchNorm under DDP: the statistics that each rank evaluates with after a training step."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1)))
model(torch.tensor([[0.0], [1.0]]) + dist.get_rank()).sum().backward()
means = [None] * dist.get_world_size()
dist.all_gather_object(means, model.module[0].running_mean.item())
if dist.get_rank() == 0:
    same = means[0] == means[1]
    print("kept:" if same else "broken:", "running means of the ranks are", means, flush=True)
dist.barrier()
os._exit(0)  # DDP can wait for ever where it is freed after its group
