"""A small data set in the real layout."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddp_reference.resnet.make_data import make_data


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
