"""The average of a model with BatchNorm after one step on two ranks."""

import os

import torch
import torch.distributed as dist
from ema_pytorch import EMA
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
net = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1))
model = DistributedDataParallel(net)
ema = EMA(net, update_after_step=0, update_every=1)
for _ in range(3):
    model(torch.tensor([[0.0], [1.0]]) + dist.get_rank()).sum().backward()
    ema.update()
means = [None] * dist.get_world_size()
dist.all_gather_object(means, ema.ema_model[0].running_mean.item())
if dist.get_rank() == 0:
    same = means[0] == means[1]
    print("kept:" if same else "broken:", "averaged running means of the ranks:", means, flush=True)
dist.barrier()
os._exit(0)  # DDP can wait for ever where it is freed after its group
