"""The command line: what it accepts, and the errors for what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ddp_reference.resnet.agreement import ConfigError
from ddp_reference.resnet.config import CONFIGS, parse
from ddp_reference.resnet.resolution import ResolutionSchedule
from ddp_reference.resnet.train import main
from lightning.pytorch.utilities import rank_zero_only


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_options_override_the_configuration() -> None:
    settings = parse(["--config=g5", "--accelerator=cpu", "--devices=3", "--schedule=0:64,2:128"])
    assert settings.name == "g5"
    assert settings.train.devices == 3
    assert settings.train.schedule == ResolutionSchedule(((0, 64), (2, 128)))
    assert settings.train.batch_size == CONFIGS["g5"].batch_size


def test_gpus_are_used_where_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert parse(["--config=p3"]).train.devices == 8


def test_the_number_of_ranks_that_torchrun_started_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert parse([]).train.devices == 2
    with pytest.raises(ConfigError, match="torchrun has started 2 ranks here, but --devices is 3"):
        parse(["--devices=3"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config=g6"], "invalid choice: 'g6'"),
        (["--epochs=many"], "invalid int value"),
        (["--schedule=0:32,soon"], "'0:32,soon' is not EPOCH:PIXELS"),
        (["--schedule=0:16,1:7"], "resolution 7 is too small for 3 stages"),
        (["--val-resolution=4"], "resolution 4 is too small .* at least 8 pixels"),
        (["--epochs=0"], "epochs is 0"),
        (["--devices=0"], "devices is 0"),
        (["--batch-size=0"], "batch_size is 0"),
        (["--workers=-1"], "workers is -1"),
        (["--learning-rate=nan"], "learning_rate nan"),
        (["--resume=no.ckpt"], "there is no checkpoint no.ckpt"),
        (["--config=g5"], "4 devices need as many GPUs, and this machine has 0"),
    ],
)
def test_bad_values_are_named(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match=message):
        parse(arguments)


def test_one_rank_prints_and_all_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = []
    for rank in (0, 1):
        monkeypatch.setattr(rank_zero_only, "rank", rank)
        assert main([f"--data={tmp_path}", f"--log-dir={tmp_path / 'runs'}"]) == 2
        errors.append(capsys.readouterr().err)
    assert errors[0].startswith(f"error: rank 0: there is no folder {tmp_path}/train;")
    assert errors[0].count("\n") == 1
    assert errors[1] == ""
