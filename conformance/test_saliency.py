"""The MIT1003 reference as its users meet it: files, errors, both forms, training."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from ddp_reference.saliency import (
    DatasetError,
    EpochShuffleSampler,
    ExactDistributedSampler,
    MIT1003Dataset,
    create_mit1003_dataloaders,
    mit1003_loader_hdf5,
)
from ddp_reference.saliency.__main__ import main as train
from ddp_reference.saliency.dataset import MAPS, STIMULI, find_files
from ddp_reference.saliency.make_data import draw_sample, make_data
from ddp_reference.saliency.make_data import main as make
from ddp_reference.saliency.trainer import (
    Config,
    Trainer,
    kl_divergence,
    normalised_scanpath_saliency,
)
from PIL import Image
from torch.nn.parallel import DistributedDataParallel

from pytest_ddp import Ddp
from tests.reference.launching import launch

SIZE = (16, 12)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    make_data(tmp_path / "data", 7, SIZE)
    return tmp_path / "data"


# ---------------------------------------------------------------- files


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


# ---------------------------------------------------------------- errors


def test_a_folder_without_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="ALLSTIMULI is not a folder; unpack"):
        create_mit1003_dataloaders(tmp_path)


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


def test_a_damaged_jpeg_is_named_through_a_worker(images: Path) -> None:
    for path in (images / STIMULI).iterdir():
        path.write_bytes(b"not a JPEG")
    train, _ = create_mit1003_dataloaders(images, num_workers=1, image_size=SIZE)
    with pytest.raises(DatasetError, match=r"i000\d\.jpeg cannot be read as a JPEG"):
        next(iter(train))


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


# ---------------------------------------------------------------- split and order


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


@pytest.mark.parametrize(("size", "world_size"), [(0, 2), (1, 3), (5, 2), (6, 3)])
def test_exact_shares_have_every_sample_once(size: int, world_size: int) -> None:
    shares = [ExactDistributedSampler(range(size), world_size, rank) for rank in range(world_size)]
    assert sorted(index for share in shares for index in share) == list(range(size))
    assert sum(map(len, shares)) == size


# ---------------------------------------------------------------- HDF5


@pytest.fixture
def hdf5(images: Path) -> Path:
    assert mit1003_loader_hdf5.convert(images, images / "all.h5", SIZE) == 7
    return images / "all.h5"


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


# ---------------------------------------------------------------- training


def test_divergence_and_scanpath_saliency() -> None:
    saliency = torch.zeros(2, 1, 2, 2)
    saliency[:, 0, 0, 0] = 1.0

    def divergence(logits: torch.Tensor) -> list[float]:
        return kl_divergence(logits, saliency).tolist()

    # A map of one pixel against an even prediction over four, and against itself.
    assert divergence(torch.zeros(2, 1, 2, 2)) == pytest.approx([math.log(4)] * 2, abs=1e-4)
    assert divergence(saliency * 30) == pytest.approx([0.0] * 2, abs=1e-4)
    hit = normalised_scanpath_saliency(saliency * 30, saliency)
    torch.testing.assert_close(hit, torch.full((2,), 1.5))
    assert normalised_scanpath_saliency(saliency, torch.zeros_like(saliency)).tolist() == [0.0, 0.0]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(
        tmp_path / "data", epochs=4, batch_size=4, image_size=SIZE, log=tmp_path / "log.jsonl"
    )


def prepared(ddp: Ddp, make: Callable[[], object]) -> None:
    if ddp.rank == 0:
        make()
    ddp.barrier()


@pytest.mark.ddp(world_size=[1, 2, 3])
def test_training_learns_and_one_rank_writes(ddp: Ddp, config: Config) -> None:
    prepared(ddp, lambda: make_data(config.data_path, 33, SIZE))
    trainer = Trainer(config, ddp.world_size, ddp.rank)
    assert isinstance(trainer.model, DistributedDataParallel) is (ddp.world_size > 1)
    results = list(trainer.fit())
    assert results[-1].train_loss < 0.9 * results[0].train_loss
    assert results[-1].val_loss < results[0].val_loss
    assert ddp.gather(results) == [results] * ddp.world_size
    weights = [parameter.tolist() for parameter in trainer.network.parameters()]
    assert ddp.gather(weights) == [weights] * ddp.world_size
    assert config.log is not None
    lines = [json.loads(line) for line in config.log.read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [0, 1, 2, 3]
    assert lines[-1]["val_loss"] == results[-1].val_loss


@pytest.mark.ddp(world_size=[1, 2, 4])
def test_validation_is_that_of_one_process(ddp: Ddp, config: Config) -> None:
    prepared(ddp, lambda: make_data(config.data_path, 30, SIZE))
    found = Trainer(config, ddp.world_size, ddp.rank).validate()
    alone = Trainer(replace(config, batch_size=1)).validate()
    assert found == pytest.approx(alone, rel=1e-5)


@pytest.mark.ddp(world_size=2)
def test_an_error_of_one_rank_is_raised_on_all(ddp: Ddp, config: Config, tmp_path: Path) -> None:
    prepared(ddp, lambda: make_data(config.data_path, 4, SIZE))
    if ddp.rank == 1:
        config = replace(config, data_path=tmp_path / "elsewhere")
    with pytest.raises(DatasetError, match="elsewhere/ALLSTIMULI is not a folder"):
        Trainer(config, ddp.world_size, ddp.rank)


def test_the_program_trains_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "all.h5"
    make([str(tmp_path / "data"), "--count", "12", "--hdf5", str(data)])
    capsys.readouterr()
    assert train([str(data), "--epochs", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["epoch 0", "epoch 1"]


def test_the_program_names_unusable_data(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train([str(tmp_path)]) == 2
    assert train([str(images), "--epochs", "0"]) == 0
    for path in (images / STIMULI).iterdir():
        path.write_bytes(b"not a JPEG")
    assert train([str(images), "--num-workers", "1"]) == 2
    missing, damaged = capsys.readouterr().err.splitlines()
    assert missing.startswith(f"error: {tmp_path}/ALLSTIMULI is not a folder; unpack")
    assert damaged.startswith(f"error on rank 0: {images}/ALLSTIMULI/i000")
    assert "cannot be read as a JPEG" in damaged


def test_the_program_trains_under_torchrun(images: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    arguments = ("--epochs", "2", "--log-file", log)
    done = launch("-m", "ddp_reference.saliency", images, *arguments, ranks=2)
    assert done.returncode == 0, done.output
    assert done.stdout.count("epoch 1: training loss") == 1
    assert len(log.read_text().splitlines()) == 2
