"""Images from disk to float32 tensors, and the batches made of them.

Randomness is a function of seed, epoch and sample alone. So no two ranks or workers
can share a random stream, whatever the global generators hold, and a resumed run
repeats an uninterrupted one with any number of workers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from ddp_reference.resnet.index import ImageFile

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)

Box = tuple[float, float, float, float]
"""Left, upper, right and lower edge in pixels of the stored image."""


class CorruptImageError(ValueError):
    """An image cannot be decoded; the text names the file.

    One rank alone meets it, in the middle of an epoch, so it is no ``ConfigError``.
    """


@dataclass(frozen=True, slots=True)
class Sample:
    """One image as a loader's worker delivers it."""

    image: Tensor
    """float32 [3, resolution, resolution], standardised with ImageNet's statistics."""
    label: int
    index: int
    """Position in the data set, so that what was delivered can be proved."""


class Batch(NamedTuple):
    """What the model gets; a rank without samples gets one with ``batch`` = 0."""

    images: Tensor
    """float32 [batch, 3, resolution, resolution]."""
    labels: Tensor
    """int64 [batch]."""
    indices: Tensor
    """int64 [batch]."""


Transform = Callable[[Image.Image, int], Tensor]
"""A function from an RGB image and its index to a float32 tensor [3, resolution, resolution]."""


@dataclass(frozen=True, slots=True)
class TrainTransform:
    """A random crop of a random shape, mirrored half of the time."""

    resolution: int
    seed: int
    epoch: int

    def __call__(self, image: Image.Image, index: int) -> Tensor:
        rng = random.Random(f"{self.seed}/{self.epoch}/{index}")
        pixels = resize(image, random_box(image.width, image.height, rng), self.resolution)
        return pixels.flip(2) if rng.random() < 0.5 else pixels


@dataclass(frozen=True, slots=True)
class EvalTransform:
    """The middle of the image: a square of 7/8 of its shorter side."""

    resolution: int

    def __call__(self, image: Image.Image, index: int) -> Tensor:
        return resize(image, middle_box(image.width, image.height), self.resolution)


def random_box(width: int, height: int, rng: random.Random) -> Box:
    """A box of 35% to 100% of the image's area and an aspect ratio of 3/4 to 4/3."""
    area = width * height * rng.uniform(0.35, 1.0)
    ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
    w, h = min(width, math.sqrt(area * ratio)), min(height, math.sqrt(area / ratio))
    left, upper = rng.uniform(0, width - w), rng.uniform(0, height - h)
    return left, upper, left + w, upper + h


def middle_box(width: int, height: int) -> Box:
    """The square in the middle, of 7/8 of the shorter side, as 224 is of 256."""
    side = min(width, height) * 7 / 8
    left, upper = (width - side) / 2, (height - side) / 2
    return left, upper, left + side, upper + side


def resize(image: Image.Image, box: Box, resolution: int) -> Tensor:
    """``box`` of the image as a standardised float32 tensor [3, resolution, resolution]."""
    scaled = image.resize((resolution, resolution), Image.Resampling.BILINEAR, box=box)
    pixels = torch.from_numpy(np.array(scaled)).permute(2, 0, 1)
    return (pixels.to(torch.float32) / 255 - MEAN) / STD


def load_image(path: Path) -> Image.Image:
    """Decode one file to RGB. Raises :class:`CorruptImageError`."""
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise CorruptImageError(
            f"{path} cannot be decoded ({error}); replace or remove it"
        ) from error


class ImageDataset(Dataset[Sample]):
    """The images of one split, transformed. Made new for every epoch, never changed."""

    def __init__(self, root: Path, files: Sequence[ImageFile], transform: Transform) -> None:
        self.root = root
        self.files = files
        self.transform = transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Sample:
        file = self.files[index]
        image = load_image(self.root / file.path)
        return Sample(self.transform(image, index), file.label, index)


@dataclass(frozen=True, slots=True)
class Collate:
    """Samples to a batch; the resolution gives a batch of no samples its shape."""

    resolution: int

    def __call__(self, samples: Sequence[Sample]) -> Batch:
        images = torch.empty(len(samples), 3, self.resolution, self.resolution)
        for row, sample in enumerate(samples):
            images[row] = sample.image
        return Batch(
            images,
            torch.tensor([sample.label for sample in samples], dtype=torch.int64),
            torch.tensor([sample.index for sample in samples], dtype=torch.int64),
        )
