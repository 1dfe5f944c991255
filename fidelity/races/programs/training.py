"""What the programs train: a small model, its data, and work that takes some time."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class MLP(nn.Module):
    """Two layers; the wider, the longer a batch takes."""

    def __init__(self, width=16):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def evaluate(batches):
    """Evaluate a model; a batch is waited for 8 ms, and takes some two of a core."""
    model = MLP(128)
    total = torch.zeros(())
    with torch.no_grad():
        for _ in range(batches):
            # Not computing alone, which takes many times as long where others compute too.
            time.sleep(0.008)
            total += model(torch.ones(128, 128)).mean()
    return total.item() / batches


class Training:
    """A loop with DDP on one batch; each rank writes the losses that it has into a file."""

    def __init__(self, folder, lr=0.1):
        self.folder = folder
        self.step = 0
        torch.manual_seed(0)
        self.model = DistributedDataParallel(MLP())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)
        torch.manual_seed(dist.get_rank())
        self.x, self.y = torch.randn(8, 16), torch.randn(8, 16)

    def run(self, steps):
        """Train; the mean loss of all ranks at the last step."""
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(self.x), self.y)
            loss.backward()
            self.optimizer.step()
            self.step += 1
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            with open(self.folder / f"loss-{dist.get_rank()}.csv", "a") as file:
                file.write(f"{self.step},{mean.item() / dist.get_world_size()}\n")
        return mean.item() / dist.get_world_size()

    def state(self):
        """What a checkpoint contains."""
        return {"model": self.model.module.state_dict(), "step": torch.tensor(self.step)}
