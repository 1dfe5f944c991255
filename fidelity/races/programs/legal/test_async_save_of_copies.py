"""A thread saves copies of the parameters."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from training import MLP, evaluate


class AsyncCheckpointer:
    def __init__(self, folder):
        self.folder = folder
        self.executor = ThreadPoolExecutor(max_workers=1)

    def save(self, state, step):
        path = self.folder / f"step-{step}-rank-{dist.get_rank()}.pt"
        copied = {name: tensor.clone() for name, tensor in state.items()}
        return self.executor.submit(self.write, copied, path)

    def write(self, state, path):
        torch.save(state, path)


@pytest.mark.ddp(world_size=2)
def test_async_save(ddp, tmp_path):
    torch.manual_seed(0)
    model = DistributedDataParallel(MLP())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    checkpointer = AsyncCheckpointer(tmp_path)
    wanted = {}
    for step in range(2):
        wanted[step] = model.module.up.weight.detach().clone()
        future = checkpointer.save(model.module.state_dict(), step)
        evaluate(12)
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        future.result()
    checkpointer.executor.shutdown()
    for step, weight in wanted.items():
        saved = torch.load(tmp_path / f"step-{step}-rank-{ddp.rank}.pt")
        torch.testing.assert_close(saved["up.weight"], weight)
