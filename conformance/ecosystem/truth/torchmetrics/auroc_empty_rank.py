"""AUROC where rank 1 has no samples. It is computed in a child, because it may end the process."""

import os
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
from torchmetrics import AUROC

child = os.fork()
if child == 0:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    metric = AUROC("binary")
    if dist.get_rank() == 0:
        metric.update(torch.tensor([0.1, 0.9]), torch.tensor([0, 1]))
    os._exit(0 if metric.compute() == 1.0 else 1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
store = dist.FileStore(f"{tempfile.gettempdir()}/codes-{os.environ['MASTER_PORT']}", 2)
store.set(os.environ["RANK"], str(code))
codes = [int(store.get(rank)) for rank in "01"]
if os.environ["RANK"] == "0":
    print("broken:" if any(codes) else "kept:", "the ranks ended with", codes)
