"""Two ranks log one point each time: how often it stands in the folder."""

import tempfile
from pathlib import Path

import torch.distributed as dist
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

dist.init_process_group("gloo")
folder = [tempfile.mkdtemp()]
dist.broadcast_object_list(folder)
with SummaryWriter(folder[0]) as writer:
    writer.add_scalar("loss", 0.5, 7)
dist.barrier()
if dist.get_rank() == 0:
    files = Path(folder[0]).glob("events.*")
    steps = [e.step for f in files for e in EventAccumulator(str(f)).Reload().Scalars("loss")]
    print("kept:" if steps == [7] else "broken:", "the steps in the folder are", steps)
dist.destroy_process_group()
