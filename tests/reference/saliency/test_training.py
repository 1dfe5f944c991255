"""Training on one rank and on several, as a part and as a program."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ddp_reference.saliency import (
    DatasetError,
)
from ddp_reference.saliency.__main__ import main as train
from ddp_reference.saliency.dataset import STIMULI
from ddp_reference.saliency.make_data import main as make
from ddp_reference.saliency.make_data import make_data
from ddp_reference.saliency.trainer import (
    Config,
    Trainer,
    kl_divergence,
    normalised_scanpath_saliency,
)
from torch.nn.parallel import DistributedDataParallel

from pytest_ddp import Ddp
from tests.reference.launching import launch
from tests.reference.saliency.sizes import SIZE


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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--batch-size", "0"), "--batch-size, --size and --learning-rate must be more than 0"),
        (("--num-workers", "-1"), "--epochs and --num-workers must be at least 0"),
        (("--epochs", "few"), "argument --epochs: invalid int value: 'few'; see "),
    ],
)
def test_the_program_names_wrong_options(
    images: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    assert train([str(images), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {said}")


def test_one_rank_names_them_under_torchrun(images: Path) -> None:
    done = launch("-m", "ddp_reference.saliency", images, "--batch-size", "0", ranks=2)
    assert len(re.findall("^error: ", done.stderr, re.MULTILINE)) == 1, done.stderr
    assert re.search(r"exitcode +: 2 ", done.stderr), done.stderr
    assert "usage:" not in done.stderr
    assert "ValueError" not in done.stderr


def test_the_program_trains_under_torchrun(images: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    arguments = ("--epochs", "2", "--log-file", log)
    done = launch("-m", "ddp_reference.saliency", images, *arguments, ranks=2)
    assert done.returncode == 0, done.output
    assert done.stdout.count("epoch 1: training loss") == 1
    assert len(log.read_text().splitlines()) == 2
