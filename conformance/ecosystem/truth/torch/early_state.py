"""Three steps with Adam; one of two runs asks for its state before the first."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")


def trained(asks):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(2, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    if asks:
        get_state_dict(model, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).square().sum().backward()
        optimizer.step()
    return model.module.weight.detach()


off = (trained(True) - trained(False)).abs().max().item()
if dist.get_rank() == 0:
    print("kept:" if off == 0 else "broken:", f"the weights of the two are {off:.1e} apart")
dist.destroy_process_group()
