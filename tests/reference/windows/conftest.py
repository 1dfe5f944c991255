"""The archive that all tests of the windows system read and none writes."""

from __future__ import annotations

import warnings
from datetime import datetime
from pathlib import Path

import pytest
from ddp_reference.windows.make_data import ArchivePlan, make_archive

with warnings.catch_warnings():
    # PyG compiles with torch.jit when it is first imported, which torch 2.13 deprecates. The
    # warning is not ours to mend, and it is an error here.
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch_geometric.nn  # noqa: F401


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 days from 2024-01-01 with 3 bins a day: an odd number in a window of odd length."""
    root = tmp_path_factory.mktemp("archive") / "data"
    make_archive(root, ArchivePlan(datetime(2024, 1, 1), days=20, bin_hours=8, stations=8))
    return root
