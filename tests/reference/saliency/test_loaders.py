"""Who gets which sample, from image files and from HDF5."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import pytest
import torch
from ddp_reference.saliency import (
    DatasetError,
    EpochShuffleSampler,
    create_mit1003_dataloaders,
    mit1003_loader_hdf5,
)

from tests.reference.saliency.sizes import SIZE


def test_the_split_depends_on_the_seed_alone(images: Path) -> None:
    def names(seed: int, rank: int) -> tuple[list[str], list[str]]:
        loaders = create_mit1003_dataloaders(
            images, 1, 0, SIZE, seed=seed, world_size=2, rank=rank, val_fraction=0.4
        )
        train, val = ([loader.dataset[i]["name"] for i in range(n)] for loader, n in
                      zip(loaders, (4, 3), strict=True))  # fmt: skip
        return train, val

    train, val = names(42, 0)
    assert sorted(train + val) == [f"i000{number}" for number in range(7)]
    assert names(42, 1) == (train, val)
    assert names(43, 0) != (train, val)


def test_the_call_without_new_arguments_shuffles_anew_each_time(images: Path) -> None:
    def orders() -> list[list[int]]:
        train, _ = create_mit1003_dataloaders(images, 32, 0, SIZE)
        return [batch["index"].tolist() for _ in range(2) for batch in train]

    first, second = orders()
    assert first != second
    assert sorted(first) == sorted(second) == list(range(6))
    assert orders() == [first, second]


def test_an_epoch_can_be_started_directly() -> None:
    through, direct = EpochShuffleSampler(range(20), seed=3), EpochShuffleSampler(range(20), seed=3)
    orders = [list(through) for _ in range(3)]
    direct.set_epoch(2)
    assert list(direct) == orders[2]
    assert len(direct) == 20


@pytest.mark.parametrize("num_workers", [0, 2])
def test_both_forms_deliver_the_same(images: Path, hdf5: Path, num_workers: int) -> None:
    from_files = create_mit1003_dataloaders(images, 2, num_workers, SIZE)
    from_hdf5 = mit1003_loader_hdf5.create_mit1003_dataloaders(hdf5, 2, num_workers, SIZE)
    assert from_hdf5[0].dataset[0]["index"] == 0  # so that the workers inherit an open file
    for one, other in zip(from_files, from_hdf5, strict=True):
        for expected, got in zip(one, other, strict=True):
            assert expected["name"] == got["name"]
            for key in ("image", "saliency", "fixations", "index"):
                assert torch.equal(expected[key], got[key]), key


def test_a_process_never_reads_through_an_inherited_handle(
    hdf5: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = mit1003_loader_hdf5.MIT1003HDF5Dataset(hdf5, range(7), SIZE)
    expected, handle, parent = dataset[0]["name"], dataset._file(), os.getpid()
    monkeypatch.setattr("os.getpid", lambda: parent + 1)
    assert dataset._file() is not handle
    assert dataset[0]["name"] == expected
    assert handle.id.valid, "the parent's handle was closed"


def test_a_missing_key_is_named(hdf5: Path) -> None:
    with h5py.File(hdf5, "a") as file:
        del file["saliency"]
    with pytest.raises(DatasetError, match=r"has no key 'saliency'; it holds 'fixations'"):
        mit1003_loader_hdf5.create_mit1003_dataloaders(hdf5)


def test_unequal_keys_are_named(hdf5: Path) -> None:
    with h5py.File(hdf5, "a") as file:
        del file["names"]
        file["names"] = ["one"]
    with pytest.raises(DatasetError, match=r"different lengths: .*'names': 1"):
        mit1003_loader_hdf5.create_mit1003_dataloaders(hdf5)


@pytest.mark.parametrize("damage", ["no file", "no HDF5"])
def test_a_file_that_is_no_hdf5_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "all.h5"
    if damage == "no HDF5":
        path.write_text("something else")
    with pytest.raises(DatasetError, match=r"all\.h5 cannot be opened as an HDF5 file"):
        mit1003_loader_hdf5.create_mit1003_dataloaders(path)
