"""Decoding, cropping and collating images."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from ddp_reference.resnet.images import (
    MEAN,
    STD,
    Collate,
    EvalTransform,
    ImageDataset,
    Sample,
    TrainTransform,
    load_image,
    middle_box,
    random_box,
)
from ddp_reference.resnet.index import scan
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    """An image without symmetry."""
    return Image.radial_gradient("L").crop((0, 40, 200, 160)).convert("RGB")


@given(st.integers(1, 300), st.integers(1, 300), st.integers())
def test_random_boxes_lie_in_the_image(width: int, height: int, seed: int) -> None:
    left, upper, right, lower = random_box(width, height, random.Random(seed))
    assert 0 <= left < right <= width + 1e-9
    assert 0 <= upper < lower <= height + 1e-9


def test_the_middle_box_is_a_centred_square() -> None:
    assert middle_box(16, 8) == (4.5, 0.5, 11.5, 7.5)


def test_random_crops_depend_on_seed_epoch_and_sample_alone(picture: Image.Image) -> None:
    made = TrainTransform(16, seed=1, epoch=2)(picture, 3)
    random.seed(0)
    torch.manual_seed(0)
    assert torch.equal(made, TrainTransform(16, seed=1, epoch=2)(picture, 3))
    others = [
        TrainTransform(16, seed=0, epoch=2)(picture, 3),
        TrainTransform(16, seed=1, epoch=1)(picture, 3),
        TrainTransform(16, seed=1, epoch=2)(picture, 2),
    ]
    assert not any(torch.equal(made, other) for other in others)


def test_some_crops_are_mirrored_and_some_are_not() -> None:
    ramp = Image.linear_gradient("L").rotate(90).convert("RGB")
    images = [TrainTransform(8, 0, 0)(ramp, index)[0] for index in range(20)]
    assert {bool(image[:, 0].mean() < image[:, -1].mean()) for image in images} == {True, False}


def test_evaluation_is_the_same_for_every_sample(picture: Image.Image) -> None:
    transform = EvalTransform(24)
    assert transform(picture, 0).shape == (3, 24, 24)
    assert torch.equal(transform(picture, 0), transform(picture, 1))


def test_pixels_are_standardised() -> None:
    grey = Image.new("RGB", (20, 20), (51, 51, 51))
    expected = ((0.2 - MEAN) / STD).expand(3, 4, 4)
    torch.testing.assert_close(EvalTransform(4)(grey, 0), expected)


def test_other_modes_become_rgb(tmp_path: Path, picture: Image.Image) -> None:
    for mode in ("L", "CMYK"):
        picture.convert(mode).save(tmp_path / "image.jpg")
        assert load_image(tmp_path / "image.jpg").mode == "RGB"


def test_a_sample_carries_its_index_and_label(dataset: Path) -> None:
    files = scan(dataset).train
    sample = ImageDataset(dataset, files, EvalTransform(16))[12]
    assert (sample.index, sample.label) == (12, files[12].label)
    assert sample.image.dtype == torch.float32


@pytest.mark.parametrize("count", [0, 3])
def test_a_batch_has_its_shape_for_any_number_of_samples(count: int) -> None:
    samples = [Sample(torch.full((3, 8, 8), float(i)), label=i + 5, index=i) for i in range(count)]
    batch = Collate(8)(samples)
    assert batch.images.shape == (count, 3, 8, 8)
    assert batch.images[:, 0, 0, 0].tolist() == batch.indices.tolist() == list(range(count))
    assert batch.labels.tolist() == [i + 5 for i in range(count)]
    assert batch.labels.dtype == batch.indices.dtype == torch.int64
