"""A thread of each rank writes a heartbeat until the test is over; a monitor reads all of them."""

from __future__ import annotations

import os
import threading
import time

import pytest
import torch
import torch.distributed as dist
from training import Training


class Heartbeat:
    def __init__(self, path):
        self.path = path
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        while not self.over.wait(0.02):
            self.write()

    def write(self):
        temporary = self.path.with_suffix(f".{threading.get_ident()}.tmp")
        temporary.write_text(str(time.time()))
        os.replace(temporary, self.path)

    def __enter__(self):
        self.write()
        self.thread.start()
        return self

    def __exit__(self, *exception):
        self.over.set()
        self.thread.join()


@pytest.mark.ddp(world_size=2)
def test_heartbeats(ddp, tmp_path):
    began = time.time()
    with Heartbeat(tmp_path / f"heartbeat-{ddp.rank}"):
        dist.barrier()
        Training(tmp_path).run(5)
        beats = [float(path.read_text()) for path in tmp_path.glob("heartbeat-?")]
        assert len(beats) == ddp.world_size
        oldest = torch.tensor(began, dtype=torch.float64)
        dist.all_reduce(oldest, dist.ReduceOp.MIN)
        assert min(beats) >= oldest.item() - 60
