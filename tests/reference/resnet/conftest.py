"""A small data set in the real layout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from ddp_reference.resnet.make_data import make_data


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other on busy cores cost more than these models compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """27 training and 17 validation images: neither can be divided by 2 ranks.

    In validation rank 0 has 9 images and rank 1 has 8, so that with batches of 8
    rank 1 gets an empty second batch.
    """
    root = tmp_path_factory.mktemp("imagenet")
    make_data(root, classes=3, train=9, val=6, size=32)
    next((root / "val").glob("*/*.jpg")).unlink()
    return root
