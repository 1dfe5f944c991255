"""MIT1003 as image files: stimuli, saliency maps and fixation points, by stem of the file name.

The layout is that of the published archives (Judd, Ehinger, Durand, Torralba:
"Learning to Predict Where Humans Look", ICCV 2009)::

    DATA/ALLSTIMULI/<stem>.jpeg
    DATA/ALLFIXATIONMAPS/<stem>_fixMap.jpg     blurred fixations of all viewers
    DATA/ALLFIXATIONMAPS/<stem>_fixPts.jpg     one bright pixel per fixation
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

Bytes: TypeAlias = npt.NDArray[np.uint8]

STIMULI = "ALLSTIMULI"
MAPS = "ALLFIXATIONMAPS"

IMAGENET_MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
IMAGENET_STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)

# JPEG turns the black around a fixation into grey of up to about 100.
FIXATION_THRESHOLD = 127


class DatasetError(ValueError):
    """The data set on disk cannot be used; the text names the file or folder and the fix."""


class Item(TypedDict):
    """One sample, or after collation one batch of them with a leading dimension."""

    image: Tensor
    """float32 [3, height, width]; in [0, 1], or standardised with ImageNet's statistics."""
    saliency: Tensor
    """float32 [1, height, width] in [0, 1]."""
    fixations: Tensor
    """float32 [1, height, width], 1 at a fixation and 0 elsewhere."""
    index: int
    """Position in this data set, so that what was delivered can be proved."""
    name: str
    """Stem of the file names."""


@dataclass(frozen=True, slots=True)
class Files:
    """The three files of one sample."""

    name: str
    stimulus: Path
    saliency: Path
    fixations: Path


def find_files(data_path: str | Path) -> list[Files]:
    """The samples under ``data_path``, sorted by name.

    Raises :class:`DatasetError` for a folder that is not there, holds no stimuli, or
    lacks the map of one; nothing is opened yet.
    """
    stimuli, maps = Path(data_path) / STIMULI, Path(data_path) / MAPS
    for folder in (stimuli, maps):
        if not folder.is_dir():
            raise DatasetError(
                f"{folder} is not a folder; unpack the MIT1003 archives into {data_path}, or make "
                f"a small data set with: python -m ddp_reference.saliency.make_data {data_path}"
            )
    found = [_files_of(stimulus, maps) for stimulus in sorted(stimuli.glob("*.jpeg"))]
    if not found:
        raise DatasetError(f"{stimuli} holds no *.jpeg file; unpack ALLSTIMULI.zip there")
    return found


def _files_of(stimulus: Path, maps: Path) -> Files:
    files = Files(
        name=stimulus.stem,
        stimulus=stimulus,
        saliency=maps / f"{stimulus.stem}_fixMap.jpg",
        fixations=maps / f"{stimulus.stem}_fixPts.jpg",
    )
    for path in (files.saliency, files.fixations):
        if not path.is_file():
            raise DatasetError(f"{path} is missing, the map of {stimulus}; unpack the maps again")
    return files


class MIT1003Dataset(Dataset[Item]):
    """The given samples, read from their files when they are asked for.

    ``image_size`` is (width, height); images are stretched to it. Reading raises
    :class:`DatasetError` naming the file that is damaged.
    """

    def __init__(
        self,
        files: Sequence[Files],
        image_size: tuple[int, int] = (1024, 768),
        normalize: bool = True,
    ) -> None:
        self._files = tuple(files)
        self._size = image_size
        self._normalize = normalize

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Item:
        files = self._files[index]
        pixels = Pixels(
            image=read_jpeg(files.stimulus, "RGB"),
            saliency=read_jpeg(files.saliency, "L"),
            fixations=read_jpeg(files.fixations, "L"),
        )
        return make_item(pixels, self._size, self._normalize, index, files.name)


class Pixels(NamedTuple):
    """One sample as stored."""

    image: Bytes
    """[height, width, 3]"""
    saliency: Bytes
    """[height, width], brighter where viewers looked longer"""
    fixations: Bytes
    """[height, width], bright at the fixated pixels"""


def make_item(
    pixels: Pixels, size: tuple[int, int], normalize: bool, index: int, name: str
) -> Item:
    """The sample at ``size`` (width, height), as float tensors."""
    return {
        "image": to_image(resize(pixels.image, size), normalize),
        "saliency": to_map(resize(pixels.saliency, size)),
        "fixations": to_map(scale_points(pixels.fixations, size)),
        "index": index,
        "name": name,
    }


def read_jpeg(path: Path, mode: Literal["RGB", "L"]) -> Bytes:
    """Pixels of a JPEG, uint8 [height, width] or [height, width, 3].

    Raises :class:`DatasetError` for a file that is damaged or gone.
    """
    try:
        with Image.open(path) as image:
            return np.array(image.convert(mode))
    except OSError as error:
        raise DatasetError(f"{path} cannot be read as a JPEG ({error}); unpack it again") from error


def resize(pixels: Bytes, size: tuple[int, int]) -> Bytes:
    """Stretched to ``size`` (width, height)."""
    if pixels.shape[:2] == (size[1], size[0]):
        return pixels
    return np.array(Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR))


def to_image(pixels: Bytes, normalize: bool) -> Tensor:
    """uint8 [height, width, 3] to float32 [3, height, width]."""
    image = torch.from_numpy(pixels).permute(2, 0, 1).float() / 255.0
    return (image - IMAGENET_MEAN) / IMAGENET_STD if normalize else image


def to_map(pixels: Bytes) -> Tensor:
    """uint8 [height, width] to float32 [1, height, width] in [0, 1]."""
    return torch.from_numpy(pixels).unsqueeze(0).float() / 255.0


def scale_points(pixels: Bytes, size: tuple[int, int]) -> Bytes:
    """Fixation points at ``size`` (width, height): 255 at a fixation, 0 elsewhere.

    The points' coordinates are scaled, because resizing the picture of single pixels
    blurs them away or drops them.
    """
    rows, columns = np.nonzero(pixels > FIXATION_THRESHOLD)
    height, width = pixels.shape
    points = np.zeros((size[1], size[0]), dtype=np.uint8)
    points[rows * size[1] // height, columns * size[0] // width] = 255
    return points
