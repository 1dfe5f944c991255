"""The error of two samples where rank 1 has none. It may end the process, or wait for ever."""

import os
import signal
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
from monai.metrics import MSEMetric

child = os.fork()
if child == 0:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    signal.alarm(30)
    metric = MSEMetric()
    if dist.get_rank() == 0:
        metric(torch.tensor([[1.0], [2.0]]), torch.tensor([[2.0], [4.0]]))
    os._exit(0 if metric.aggregate() == 2.5 else 1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
store = dist.FileStore(f"{tempfile.gettempdir()}/codes-{os.environ['MASTER_PORT']}", 2)
store.set(os.environ["RANK"], str(code))
codes = [int(store.get(rank)) for rank in "01"]
if os.environ["RANK"] == "0":
    print("broken:" if any(codes) else "kept:", "the ranks ended with", codes)
