"""A small data set in both of its forms."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddp_reference.saliency import (
    mit1003_loader_hdf5,
)
from ddp_reference.saliency.make_data import make_data

from tests.reference.saliency.sizes import SIZE


@pytest.fixture
def images(tmp_path: Path) -> Path:
    make_data(tmp_path / "data", 7, SIZE)
    return tmp_path / "data"


@pytest.fixture
def hdf5(images: Path) -> Path:
    assert mit1003_loader_hdf5.convert(images, images / "all.h5", SIZE) == 7
    return images / "all.h5"
