"""The gradient of a linear embedding of four samples, from one process and from two ranks."""

import os

import torch
import torch.distributed as dist
from pytorch_metric_learning.losses import ContrastiveLoss
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch import nn
from torch.nn.parallel import DistributedDataParallel

points = torch.tensor([[0.0, 1.0], [2.0, 1.0], [1.0, 3.0], [4.0, 0.5]])
labels = torch.tensor([0, 0, 0, 1])


def gradient(model, loss, own):
    loss(model(points[own]), labels[own]).backward()
    return next(model.parameters()).grad.flatten().tolist()


torch.manual_seed(0)
alone = nn.Linear(2, 2)
expected = gradient(alone, ContrastiveLoss(), slice(0, 4))
dist.init_process_group("gloo")
torch.manual_seed(0)
rank = dist.get_rank()
wrapper = DistributedLossWrapper(ContrastiveLoss(), efficient=True)
found = gradient(DistributedDataParallel(nn.Linear(2, 2)), wrapper, slice(2 * rank, 2 * rank + 2))
if rank == 0:
    same = torch.allclose(torch.tensor(found), torch.tensor(expected), rtol=1e-3)
    print("kept:" if same else "broken:", found, "and from one process", expected, flush=True)
dist.barrier()
os._exit(0)  # DDP can wait for ever where it is freed after its group
