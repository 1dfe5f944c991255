"""Loaders of MIT1003 as one HDF5 file, for one process or for each rank of many.

The file holds all samples at one size: ``images`` uint8 [n, height, width, 3],
``saliency`` and ``fixations`` uint8 [n, height, width], ``names`` strings [n].
:func:`convert` makes it from the image files.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
from torch.utils.data import DataLoader, Dataset

from ddp_reference.saliency.dataset import (
    DatasetError,
    Item,
    Pixels,
    find_files,
    make_item,
    read_jpeg,
    resize,
    scale_points,
)
from ddp_reference.saliency.mit1003_loader import build_loaders, split
from ddp_reference.saliency.samplers import check_rank

KEYS = ("images", "saliency", "fixations", "names")


def create_mit1003_dataloaders(
    data_path: str | Path,
    batch_size: int = 32,
    num_workers: int = 8,
    image_size: tuple[int, int] = (1024, 768),
    normalize: bool = True,
    seed: int = 42,
    world_size: int = 1,
    rank: int = 0,
    *,
    val_fraction: float = 0.1,
) -> tuple[DataLoader[Item], DataLoader[Item]]:
    """Make loaders as the function of this name does for image files, with ``data_path`` an HDF5
    file.

    The same samples in the same split and order, if the file was made from these images.
    """
    check_rank(world_size, rank)
    train_rows, val_rows = split(range(count(data_path)), val_fraction, seed, data_path)
    return build_loaders(
        MIT1003HDF5Dataset(data_path, train_rows, image_size, normalize),
        MIT1003HDF5Dataset(data_path, val_rows, image_size, normalize),
        batch_size=batch_size,
        num_workers=num_workers,
        seed=seed,
        world_size=world_size,
        rank=rank,
    )


def open_file(path: str | Path) -> Any:
    """The file, open for reading; raises :class:`DatasetError` if it cannot be."""
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise DatasetError(
            f"{path} cannot be opened as an HDF5 file ({error}); make one from the image files "
            f"with: python -m ddp_reference.saliency.make_data DIR --hdf5 {path}"
        ) from error


def count(path: str | Path) -> int:
    """Number of samples; raises :class:`DatasetError` for a missing key or unequal lengths."""
    with open_file(path) as file:
        missing = [key for key in KEYS if key not in file]
        if missing:
            raise DatasetError(
                f"{path} has no key {', '.join(map(repr, missing))}; it holds "
                f"{', '.join(map(repr, file)) or 'nothing'}, needed are {', '.join(KEYS)}"
            )
        lengths = {key: len(file[key]) for key in KEYS}
    if len(set(lengths.values())) != 1:
        raise DatasetError(f"{path} holds keys of different lengths: {lengths}; make it again")
    return lengths["images"]


class MIT1003HDF5Dataset(Dataset[Item]):
    """The given rows of the file.

    Each process opens the file for itself when it first reads: an HDF5 handle that went
    through a fork shares its file offset and the library's caches with the parent, and
    then reads return other rows' bytes.
    """

    def __init__(
        self,
        path: str | Path,
        rows: Sequence[int],
        image_size: tuple[int, int] = (1024, 768),
        normalize: bool = True,
    ) -> None:
        self._path = path
        self._rows = tuple(rows)
        self._size = image_size
        self._normalize = normalize
        self._opened: tuple[int, Any] | None = None
        self._inherited: list[Any] = []

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Item:
        file, row = self._file(), self._rows[index]
        try:
            pixels = Pixels(file["images"][row], file["saliency"][row], file["fixations"][row])
            name = file["names"].asstr()[row]
        except OSError as error:
            raise DatasetError(f"{self._path}, row {row}, cannot be read ({error})") from error
        return make_item(pixels, self._size, self._normalize, index, name)

    def _file(self) -> Any:
        if self._opened is not None and self._opened[0] != os.getpid():
            # Kept, for dropping the last reference would close the parent's handle here.
            self._inherited.append(self._opened[1])
            self._opened = None
        if self._opened is None:
            self._opened = (os.getpid(), open_file(self._path))
        return self._opened[1]

    def __getstate__(self) -> dict[str, Any]:
        # Handles cannot be pickled; a spawned worker opens its own.
        return {**self.__dict__, "_opened": None, "_inherited": []}


def convert(data_path: str | Path, file: str | Path, image_size: tuple[int, int]) -> int:
    """Write the image files in ``data_path`` to an HDF5 file at one size; returns how many.

    The file is complete when it appears under its name. Raises
    :class:`~ddp_reference.saliency.dataset.DatasetError` for images that cannot be read.
    """
    samples = find_files(data_path)
    width, height = image_size
    unfinished = Path(f"{file}.partial")
    with h5py.File(unfinished, "w") as target:
        shape = (len(samples), height, width)
        images = target.create_dataset("images", (*shape, 3), "uint8", chunks=(1, height, width, 3))
        saliency = target.create_dataset("saliency", shape, "uint8", chunks=(1, height, width))
        fixations = target.create_dataset("fixations", shape, "uint8", chunks=(1, height, width))
        target["names"] = [sample.name for sample in samples]
        for row, sample in enumerate(samples):
            images[row] = resize(read_jpeg(sample.stimulus, "RGB"), image_size)
            saliency[row] = resize(read_jpeg(sample.saliency, "L"), image_size)
            fixations[row] = scale_points(read_jpeg(sample.fixations, "L"), image_size)
    unfinished.replace(file)
    return len(samples)
