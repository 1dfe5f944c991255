"""Two ranks save after 2 of 4 batches: what they draw after it, and after a resumption."""

import tempfile

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True)
loader = accelerator.prepare(DataLoader(range(8)))
folder = [tempfile.mkdtemp()]
dist.broadcast_object_list(folder)
set_seed(0)
whole = []
for number, _ in enumerate(loader):
    if number == 2:
        accelerator.save_state(folder[0])
    if number >= 2:
        whole.append(torch.rand(1).item())
accelerator.load_state(folder[0])
resumed = [torch.rand(1).item() for _ in accelerator.skip_first_batches(loader, 2)]
if accelerator.is_main_process:
    print("kept:" if whole == resumed else "broken:", f"{whole} at once, {resumed} resumed")
dist.destroy_process_group()
