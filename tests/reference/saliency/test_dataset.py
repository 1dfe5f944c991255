"""The files of MIT1003, and the errors for those that cannot be used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from ddp_reference.saliency import (
    DatasetError,
    MIT1003Dataset,
    create_mit1003_dataloaders,
)
from ddp_reference.saliency.dataset import MAPS, STIMULI, find_files
from ddp_reference.saliency.make_data import draw_sample, make_data
from ddp_reference.saliency.make_data import main as make
from PIL import Image

from tests.reference.saliency.sizes import SIZE


def test_layout_is_that_of_the_published_archives(images: Path) -> None:
    assert sorted(path.name for path in (images / STIMULI).iterdir())[:2] == [
        "i0000.jpeg",
        "i0001.jpeg",
    ]
    assert sorted(path.name for path in (images / MAPS).iterdir())[:2] == [
        "i0000_fixMap.jpg",
        "i0000_fixPts.jpg",
    ]


def test_an_item(images: Path) -> None:
    item = MIT1003Dataset(find_files(images), image_size=(8, 6), normalize=False)[3]
    assert (item["index"], item["name"]) == (3, "i0003")
    assert item["image"].shape == (3, 6, 8)
    assert item["saliency"].shape == item["fixations"].shape == (1, 6, 8)
    assert 0 <= item["image"].min() < item["image"].max() <= 1
    assert set(item["fixations"].unique().tolist()) == {0.0, 1.0}


def test_every_fixation_survives_the_files(images: Path) -> None:
    points = draw_sample(SIZE, np.random.default_rng((0, 3)))[2]
    read = MIT1003Dataset(find_files(images), image_size=SIZE)[3]["fixations"]
    assert torch.equal(read[0] > 0, torch.from_numpy(points) > 0)


def test_normalisation_is_that_of_imagenet(images: Path) -> None:
    raw = MIT1003Dataset(find_files(images), SIZE, normalize=False)[0]["image"]
    normal = MIT1003Dataset(find_files(images), SIZE, normalize=True)[0]["image"]
    torch.testing.assert_close(normal[1] * 0.224 + 0.456, raw[1])


def test_images_of_any_size_and_mode_are_read(images: Path) -> None:
    Image.new("L", (31, 17), 128).save(images / STIMULI / "i0002.jpeg")
    assert MIT1003Dataset(find_files(images), SIZE)[2]["image"].shape == (3, 12, 16)


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / STIMULI).mkdir()
    (tmp_path / MAPS).mkdir()
    with pytest.raises(DatasetError, match=r"ALLSTIMULI holds no \*\.jpeg file"):
        create_mit1003_dataloaders(tmp_path)


@pytest.mark.parametrize("kind", ["fixMap", "fixPts"])
def test_a_missing_map_is_named(images: Path, kind: str) -> None:
    (images / MAPS / f"i0004_{kind}.jpg").unlink()
    with pytest.raises(DatasetError, match=rf"i0004_{kind}\.jpg is missing, the map of .*i0004"):
        create_mit1003_dataloaders(images)


@pytest.mark.parametrize("damage", [b"", b"not a JPEG", None])
def test_a_damaged_jpeg_is_named(images: Path, damage: bytes | None) -> None:
    path = images / STIMULI / "i0002.jpeg"
    path.write_bytes(path.read_bytes()[:200] if damage is None else damage)
    dataset = MIT1003Dataset(find_files(images), SIZE)
    with pytest.raises(DatasetError, match=r"i0002\.jpeg cannot be read as a JPEG"):
        dataset[2]


def test_one_sample_cannot_be_split(tmp_path: Path) -> None:
    make_data(tmp_path, 1, SIZE)
    with pytest.raises(DatasetError, match="holds 1 sample; training and validation need one"):
        create_mit1003_dataloaders(tmp_path)


@pytest.mark.parametrize(("world_size", "rank"), [(2, 2), (1, 1), (2, -1), (0, 0)])
def test_a_rank_outside_of_the_world_is_named(images: Path, world_size: int, rank: int) -> None:
    with pytest.raises(ValueError, match=f"is {rank if world_size else world_size}[,;]"):
        create_mit1003_dataloaders(images, world_size=world_size, rank=rank)


def test_a_fraction_outside_of_its_range_is_named(images: Path) -> None:
    with pytest.raises(ValueError, match=r"val_fraction is 1\.0"):
        create_mit1003_dataloaders(images, val_fraction=1.0)


def test_the_command_names_wrong_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        make([str(tmp_path), "--count", "0"])
    assert "count is 0" in capsys.readouterr().err
