"""A rank whose own loss grows lowers its rate, and the other one does not."""

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import ReduceLROnPlateau

dist.init_process_group("gloo")
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
schedule = ReduceLROnPlateau(optimizer, patience=0)
for loss in (1.0, 0.5 + dist.get_rank()):
    optimizer.step()
    schedule.step(loss)
everyone = [None] * dist.get_world_size()
dist.all_gather_object(everyone, optimizer.param_groups[0]["lr"])
if dist.get_rank() == 0:
    print("kept:" if everyone[0] == everyone[1] else "broken:", "the ranks' rates are", everyone)
dist.destroy_process_group()
