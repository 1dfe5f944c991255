"""Two ranks load what they saved, without the file of rank 1's random states: what each draws."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed

accelerator = Accelerator(cpu=True)
set_seed(0, device_specific=True)
folder = [tempfile.mkdtemp()]
dist.broadcast_object_list(folder)
accelerator.save_state(folder[0])
right = torch.rand(1).item()
accelerator.wait_for_everyone()
if accelerator.is_main_process:
    (Path(folder[0]) / "random_states_1.pkl").unlink()
accelerator.wait_for_everyone()
try:
    accelerator.load_state(folder[0])
    outcome = "goes on as saved" if torch.rand(1).item() == right else "goes on from another state"
except Exception as error:
    outcome = f"refuses with {type(error).__name__}"
everyone = [None, None]
dist.all_gather_object(everyone, outcome)
if accelerator.is_main_process:
    refused = all(text.startswith("refuses") for text in everyone)
    print("kept:" if refused else "broken:", f"rank 0 {everyone[0]}, rank 1 {everyone[1]}")
dist.destroy_process_group()
