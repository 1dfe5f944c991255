"""Training as people write it: DDP, FSDP2 and compile reach what one process reaches."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

pytestmark = pytest.mark.ddp

EXPECTED = {
    "test_ddp": ("passed", ""),
    "test_fully_shard": ("passed", ""),
    "test_compile": ("passed", ""),
    "test_workers_of_a_loader": ("passed", ""),
}


@pytest.fixture
def model(ddp):
    torch.manual_seed(0)
    layers = torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)
    return torch.nn.Sequential(*layers).to(ddp.device)


def batches(ddp):
    """Return a batch for each step, with the samples of all ranks; equal on every rank."""
    numbers = torch.Generator().manual_seed(1)
    return [torch.randn(2 * ddp.world_size, 4, generator=numbers).to(ddp.device) for _ in range(3)]


def share(ddp, batch):
    return batch[ddp.rank :: ddp.world_size]


def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in steps:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def parameters(model):
    found = (p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters())
    return torch.cat([p.detach().flatten() for p in found])


def check(ddp, trained, alone):
    train(alone, batches(ddp))
    torch.testing.assert_close(parameters(trained), parameters(alone), rtol=1e-4, atol=1e-5)


def ddp_of(ddp, model):
    return DistributedDataParallel(model, [ddp.device] if ddp.device.type == "cuda" else None)


def test_ddp(ddp, model):
    alone = copy.deepcopy(model)
    wrapped = ddp_of(ddp, model)
    train(wrapped, [share(ddp, batch) for batch in batches(ddp)])
    check(ddp, model, alone)


def test_fully_shard(ddp, model):
    alone = copy.deepcopy(model)
    mesh = dist.init_device_mesh(ddp.device.type, (ddp.world_size,))
    fully_shard(model, mesh=mesh)
    train(model, [share(ddp, batch) for batch in batches(ddp)])
    check(ddp, model, alone)


def test_compile(ddp, model):
    alone = copy.deepcopy(model)
    # Inductor on the CPU needs a compiler of C++; on a GPU it brings its own.
    backend = "inductor" if ddp.device.type == "cuda" else "aot_eager"
    compiled = torch.compile(ddp_of(ddp, model), backend=backend)
    train(compiled, [share(ddp, batch) for batch in batches(ddp)])
    check(ddp, model, alone)


def test_workers_of_a_loader(ddp):
    data = TensorDataset(torch.arange(8 * ddp.world_size))
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=2, sampler=sampler, num_workers=1)
    seen = torch.cat([batch for (batch,) in loader]).tolist()
    all_seen = [number for numbers in ddp.gather(seen) for number in numbers]
    assert sorted(all_seen) == list(range(8 * ddp.world_size))
