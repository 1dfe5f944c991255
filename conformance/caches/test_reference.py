"""The latent cache is one memory for all ranks, built once, at world sizes 1, 2 and 4."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from ddp_conformance import Cache, Case, Subject, parametrize_with_checks
from ddp_reference.cache import LatentCache, Recipe, open_on_all_ranks, write
from torch import Tensor

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck

FILE = "latents.pt"

Produce = Callable[[], Mapping[str, Tensor]]


def latent_cache(case: Case, produce: Produce) -> LatentCache:
    return open_on_all_ranks(case.directory / FILE, recipe=Recipe(produce, "conformance"))


def latent_cache_from_file(case: Case, produce: Produce) -> LatentCache:
    recipe = Recipe(produce, "conformance")
    return open_on_all_ranks(case.directory / FILE, recipe=recipe, segment_dir=None)


def tensors(cache: LatentCache) -> dict[str, Tensor]:
    return {key: cache.tensor(key) for key in cache.keys}


def save_from_gpu(case: Case) -> None:
    """A cache as a machine with a GPU writes it: the device is a string beside the bytes."""
    plain = case.directory / "plain.pt"
    write(plain, {"latent": torch.randn(case.size, 3)}, "conformance")
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(case.directory / FILE, "w") as new:
        for name in old.namelist():
            data = old.read(name).replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
            new.writestr(name, data)


SUBJECTS = [
    Cache(latent_cache, tensors=tensors, spoil=save_from_gpu),
    Cache(latent_cache_from_file, tensors=tensors, spoil=save_from_gpu),
]


@parametrize_with_checks(SUBJECTS, world_size=(1, 2, 4), share_ranks=True)
def test_reference(subject: Subject, check: BoundCheck) -> None:
    check(subject)
