"""The origin of the workers of each reference loader; run by torchrun.

``worker_ranks DIRECTORY`` takes a batch of each loader with one worker, in a rank of gloo, and
writes what it saw to ``DIRECTORY/rank<N>.json``. Imports of a system are in its function: a
worker of another one would import them too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch.distributed as dist
from torch.utils.data import DataLoader


def windows(root: Path) -> DataLoader[Any]:
    from ddp_reference.windows.datamodule import GNNDataModule

    dates = ("2024-01-01", "2024-01-03", "2024-01-03", "2024-01-05")
    module = GNNDataModule(root, *dates, num_workers=1)
    module.setup("fit")
    return module.train_dataloader()


def resnet(root: Path) -> DataLoader[Any]:
    from ddp_reference.resnet.data import ImageNetDataModule

    module = ImageNetDataModule(root, num_workers=1, resolution=16, val_resolution=16)
    if dist.get_rank() == 0:
        module.prepare_data()
    dist.barrier()
    module.setup()
    return module.train_dataloader()


def saliency(root: Path) -> DataLoader[Any]:
    from ddp_reference.saliency import create_mit1003_dataloaders

    return create_mit1003_dataloaders(root, 2, 1, (16, 12), world_size=2, rank=dist.get_rank())[0]


def hdf5(root: Path) -> DataLoader[Any]:
    from ddp_reference.saliency import mit1003_loader_hdf5

    return mit1003_loader_hdf5.create_mit1003_dataloaders(
        root / "all.h5", 2, 1, (16, 12), world_size=2, rank=dist.get_rank()
    )[0]


def training(root: Path) -> DataLoader[Any]:
    from ddp_reference.cache import LatentCache
    from ddp_reference.training.data import (
        BatchPlan,
        EpochSampler,
        LatentPairs,
        build_latent_pair_loader,
    )

    dataset = LatentPairs(LatentCache.open(root / "burgers.pt", segment_dir=None), range(12), 0)
    plan = BatchPlan(12, 3, 1, 2, dist.get_rank(), True)
    sampler = EpochSampler(plan, shuffle=True, seed=1)
    return build_latent_pair_loader(dataset, sampler, plan, workers=1, cuda=False)


SYSTEMS: dict[str, Callable[[Path], DataLoader[Any]]] = {
    "windows": windows,
    "resnet": resnet,
    "saliency": saliency,
    "hdf5": hdf5,
    "training": training,
}


def look(loader: DataLoader[Any]) -> dict[str, Any]:
    """A batch has come: who are the children, and who forked the worker that sent it?"""
    batches = iter(loader)
    next(batches)
    children = {" ".join(child.cmdline()): child for child in psutil.Process().children()}
    servers = [child for line, child in children.items() if "forkserver" in line]
    return {
        "others": [
            line for line in children if "forkserver" not in line and "resource_tracker" not in line
        ],
        "workers": [len(server.children()) for server in servers],
        "threads": [server.num_threads() for server in servers],
    }


def main(directory: Path) -> None:
    dist.init_process_group("gloo")
    seen = {name: look(make(directory / name)) for name, make in SYSTEMS.items()}
    (directory / f"rank{dist.get_rank()}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
