"""Make a small data set in ImageNet's folder layout, for tests and for trying things out.

``python -m ddp_reference.resnet.make_data DIR`` writes ``DIR/train/CLASS/*.jpg`` and
``DIR/val/CLASS/*.jpg``. A class is a direction of stripes; colour, phase, frequency and
the shape of the image vary within it, so that there is something to learn and nothing
to memorise. The directions lie in one quadrant: a mirrored image must not look like
another class, because training mirrors images.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image


def make_data(
    directory: str | Path,
    classes: int = 4,
    train: int = 32,
    val: int = 9,
    size: int = 48,
    seed: int = 0,
) -> None:
    """Write ``train`` and ``val`` images per class, of about ``size`` pixels a side.

    Raises ``ValueError`` for a count below 1, a size below 8 and a folder that already
    holds a data set: mixing two sets would leave images of neither.
    """
    if min(classes, train, val) < 1 or size < 8:
        raise ValueError(
            f"classes={classes}, train={train} and val={val} must be at least 1, "
            f"and size={size} at least 8"
        )
    root = Path(directory)
    for number, (split, count) in enumerate((("train", train), ("val", val))):
        if (root / split).exists():
            raise ValueError(f"{root / split} exists; name an empty folder or remove it")
        for label in range(classes):
            _write_class(root / split, label, classes, count, size, (seed, number, label))


def _write_class(
    split: Path, label: int, classes: int, count: int, size: int, seed: tuple[int, ...]
) -> None:
    angle = 90 * label / max(1, classes - 1)
    folder = split / f"stripes{angle:04.1f}"
    folder.mkdir(parents=True)
    for number in range(count):
        rng = np.random.default_rng((*seed, number))
        image = draw_stripes(np.deg2rad(angle), size, rng)
        Image.fromarray(image).save(folder / f"{number:05d}.jpg", quality=90)


def draw_stripes(angle: float, size: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Stripes across ``angle`` radians, uint8 [height, width, 3], the sides within 25% of size."""
    height, width = rng.integers(size - size // 4, size + size // 4 + 1, 2)
    y, x = np.mgrid[:height, :width] / size
    frequency, phase = rng.uniform(3, 5), rng.uniform(0, 2 * np.pi)
    turned = x * np.cos(angle) + y * np.sin(angle)
    stripes = 0.5 + 0.5 * np.sin(2 * np.pi * frequency * turned + phase)
    dark, light = rng.uniform(0, 110, 3), rng.uniform(145, 255, 3)
    noise = rng.normal(0, 10, (height, width, 3))
    picture = dark + stripes[..., None] * (light - dark) + noise
    return np.asarray(picture.clip(0, 255), dtype=np.uint8)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line of the script; exits with 2 and one message on bad values."""
    parser = argparse.ArgumentParser(prog="python -m ddp_reference.resnet.make_data")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--classes", type=int, default=4)
    parser.add_argument("--train", type=int, default=32, help="training images per class")
    parser.add_argument("--val", type=int, default=9, help="validation images per class")
    parser.add_argument("--size", type=int, default=48, help="pixels a side, about")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        make_data(**vars(options))
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
