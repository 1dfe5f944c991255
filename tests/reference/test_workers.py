"""DataLoader workers of a rank are forked by a process without a rank's threads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp_reference.cache import write
from ddp_reference.resnet.make_data import make_data as make_images
from ddp_reference.saliency import mit1003_loader_hdf5
from ddp_reference.saliency.make_data import make_data as make_maps
from ddp_reference.training.burgers import latent_pairs
from ddp_reference.windows.make_data import ArchivePlan, make_archive
from ddp_reference.workers import worker_context

from tests.reference import worker_ranks
from tests.reference.launching import launch


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(tmp_path / "store")), rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


def test_a_process_that_is_no_rank_leaves_the_choice_to_torch() -> None:
    assert worker_context(2, "torch") is None


def test_a_rank_without_workers_needs_no_server(group: None) -> None:
    assert worker_context(0, "torch") is None


def test_a_process_that_uses_cuda_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    context = worker_context(1, "torch")
    assert context is not None
    assert context.get_start_method() == "forkserver"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What was seen of each rank, by system."""
    directory = tmp_path_factory.mktemp("workers")
    make_archive(
        directory / "windows", ArchivePlan(datetime(2024, 1, 1), 5, bin_hours=8, stations=8)
    )
    make_images(directory / "resnet", classes=2, train=4, val=2, size=16)
    make_maps(directory / "saliency", 8, (16, 12))
    (directory / "hdf5").mkdir()
    mit1003_loader_hdf5.convert(directory / "saliency", directory / "hdf5/all.h5", (16, 12))
    (directory / "training").mkdir()
    write(directory / "training/burgers.pt", latent_pairs(12, 0), "test")
    done = launch("-m", worker_ranks.__name__, directory, ranks=2)
    assert done.returncode == 0, done.stderr
    return [json.loads((directory / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("system", worker_ranks.SYSTEMS)
def test_workers_come_from_a_server_of_one_thread(seen: list[dict[str, Any]], system: str) -> None:
    """Which :func:`ddp_reference.workers.worker_context` explains."""
    for rank in seen:
        assert rank[system] == {"others": [], "workers": [1], "threads": [1]}
