"""The error of each of two outputs where rank 1 has no samples. It may end the process."""

import os
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
from torcheval.metrics import MeanSquaredError
from torcheval.metrics.toolkit import sync_and_compute

child = os.fork()
if child == 0:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    metric = MeanSquaredError(multioutput="raw_values")
    if dist.get_rank() == 0:
        metric.update(torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 4.0]]))
    os._exit(0 if sync_and_compute(metric).tolist() == [1.0, 4.0] else 1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
store = dist.FileStore(f"{tempfile.gettempdir()}/codes-{os.environ['MASTER_PORT']}", 2)
store.set(os.environ["RANK"], str(code))
codes = [int(store.get(rank)) for rank in "01"]
if os.environ["RANK"] == "0":
    print("broken:" if any(codes) else "kept:", "the ranks ended with", codes)
