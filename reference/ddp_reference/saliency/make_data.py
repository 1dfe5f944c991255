"""Make a small data set in the layout of MIT1003, for tests and for trying things out.

``python -m ddp_reference.saliency.make_data DIR --count N``. The stimuli are bright
blobs on a smooth background, and the fixations fall on the blobs, so that there is
something to learn.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from ddp_reference.saliency.dataset import MAPS, STIMULI, Bytes
from ddp_reference.saliency.mit1003_loader_hdf5 import convert

VIEWERS = 15
"""Fixations per blob: as many as MIT1003 had viewers."""


def make_data(
    directory: str | Path, count: int, size: tuple[int, int] = (64, 48), seed: int = 0
) -> None:
    """Write ``count`` samples of ``size`` (width, height) below ``directory``.

    Existing files of the same names are replaced. Raises ``ValueError`` for a count
    below 1 or a side below 2 pixels.
    """
    if count < 1 or min(size) < 2:
        raise ValueError(f"count is {count} and size {size}; at least 1 and (2, 2) are needed")
    root = Path(directory)
    for folder in (STIMULI, MAPS):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        _write_sample(root, f"i{number:04d}", size, np.random.default_rng((seed, number)))


def _write_sample(root: Path, name: str, size: tuple[int, int], rng: np.random.Generator) -> None:
    stimulus, saliency, points = draw_sample(size, rng)
    Image.fromarray(stimulus).save(root / STIMULI / f"{name}.jpeg", quality=90)
    Image.fromarray(saliency).save(root / MAPS / f"{name}_fixMap.jpg", quality=90)
    Image.fromarray(points).save(root / MAPS / f"{name}_fixPts.jpg", quality=95)


def draw_sample(size: tuple[int, int], rng: np.random.Generator) -> tuple[Bytes, Bytes, Bytes]:
    """A stimulus [height, width, 3], its saliency map and its fixation points [height, width]."""
    width, height = size
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    blobs = np.zeros((height, width))
    points = np.zeros((height, width), dtype=np.uint8)
    for _ in range(rng.integers(1, 4)):
        center = rng.uniform(0.15, 0.85, 2)
        blobs += np.exp(-((x - center[0]) ** 2 + (y - center[1]) ** 2) / (2 * 0.08**2))
        fixations = np.clip(rng.normal(center, 0.05, (VIEWERS, 2)), 0, 1)
        columns, rows = np.rint(fixations * (width - 1, height - 1)).astype(int).T
        points[rows, columns] = 255
    blobs = blobs / blobs.max()
    background = 0.3 + 0.2 * np.sin(2 * np.pi * (x * rng.uniform(0.5, 2) + y))
    colour = rng.uniform(0.6, 1.0, 3)
    stimulus = background[..., None] * 0.7 + 0.6 * blobs[..., None] * colour
    noise = rng.normal(0, 0.02, stimulus.shape)
    return _to_bytes(stimulus + noise), _to_bytes(blobs), points


def _to_bytes(values: npt.NDArray[np.float64]) -> Bytes:
    return np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the data that the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m ddp_reference.saliency.make_data",
        description="Make a small data set in the layout of MIT1003.",
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--count", type=int, default=40, help="number of samples (default 40)")
    parser.add_argument("--size", type=int, nargs=2, default=(64, 48), metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--hdf5", type=Path, metavar="FILE", help="also write the samples to this HDF5 file"
    )
    options = parser.parse_args(arguments)
    size = (options.size[0], options.size[1])
    try:
        make_data(options.directory, options.count, size, options.seed)
        if options.hdf5 is not None:
            convert(options.directory, options.hdf5, size)
    except ValueError as error:
        parser.error(str(error))
    print(f"{options.count} samples in {options.directory}")


if __name__ == "__main__":
    main()
