"""Cache files, sound and broken, as a GPU machine or an interrupted writer leaves them."""

import zipfile
from pathlib import Path

import pytest
import torch
from ddp_reference.cache import write
from torch import Tensor


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {
        "latent": torch.randn(21, 5, generator=generator),
        "label": torch.arange(21),
        "half": torch.randn(21, 2, 3, generator=generator).to(torch.bfloat16),
    }


@pytest.fixture
def cache_file(tmp_path: Path, tensors: dict[str, Tensor]) -> Path:
    path = tmp_path / "latents.pt"
    write(path, tensors, "test data")
    return path


@pytest.fixture
def cuda_file(tmp_path: Path, cache_file: Path) -> Path:
    """A cache whose tensors were saved from a GPU.

    An archive records the device as a string beside the bytes; changing that string gives
    byte for byte what a machine with a GPU writes.
    """
    path = tmp_path / "cuda.pt"
    cpu, cuda = b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0"
    with zipfile.ZipFile(cache_file) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith("data.pkl"):
                assert data.count(cpu) == 1  # pickle writes a string once and then refers to it
                data = data.replace(cpu, cuda)
            new.writestr(name, data)
    return path
