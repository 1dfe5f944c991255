"""The program on two ranks, started for real: by Lightning's launcher and by torchrun."""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from ddp_reference.resnet.images import Collate, EvalTransform, ImageDataset
from ddp_reference.resnet.index import scan
from ddp_reference.resnet.module import ResNetModule
from torch.nn import functional

from tests.reference.launching import Finished, launch

PROGRAM = "ddp_reference.resnet"
RANKS = str(Path(__file__).with_name("ranks.py"))
SMALL = (
    "--accelerator=cpu",
    "--width=4",
    "--batch-size=8",
    "--workers=0",
    "--schedule=0:16,1:24,3:32",
    "--val-resolution=24",
)


def complaints(done: Finished) -> list[str]:
    """The program's error messages; torchrun's own summary is left out."""
    return [line for line in done.output.splitlines() if line.startswith("error: ")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the log directories."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def first(dataset: Path, runs: Path) -> Finished:
    """Epochs 0 and 1, started by Lightning's launcher."""
    arguments = (f"--data={dataset}", f"--log-dir={runs}", "--devices=2", "--epochs=2")
    return launch("-m", PROGRAM, *arguments, *SMALL)


@pytest.fixture(scope="module")
def journals(
    dataset: Path, runs: Path, first: Finished, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """Epochs 2 to 4, resumed under torchrun; what each rank saw."""
    directory = tmp_path_factory.mktemp("journals")
    checkpoint = runs / "local" / "version_0" / "checkpoints" / "last.ckpt"
    arguments = (f"--data={dataset}", f"--log-dir={runs}", f"--resume={checkpoint}", "--epochs=5")
    done = launch(RANKS, directory, *arguments, *SMALL, ranks=2)
    assert done.returncode == 0, done.output
    return [json.loads((directory / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def epochs(runs: Path, version: int) -> list[dict[str, Any]]:
    """The epoch records of a run."""
    text = (runs / "local" / f"version_{version}" / "metrics.json").read_text()
    return [record for record in json.loads(text) if record["event"] == "epoch"]


def test_two_ranks_end_well_behind_one_progress_bar(first: Finished) -> None:
    assert first.returncode == 0, first.output
    assert first.output.count("All distributed processes registered. Starting with 2") == 1
    assert "Epoch 1: 100%" in first.output


def test_the_learning_rate_is_printed_by_one_rank(first: Finished) -> None:
    assert re.findall(r"epoch \d: learning rate \S+", first.output) == [
        "epoch 0: learning rate 0.05",
        "epoch 1: learning rate 0.1",
    ]


def test_one_run_has_one_directory_with_each_file_once(first: Finished, runs: Path) -> None:
    directory = runs / "local" / "version_0"
    assert {path.name for path in (runs / "local").iterdir()} >= {"version_0"}
    names = sorted(path.name for path in directory.iterdir())
    assert names[0] == "checkpoints"
    assert names[1].startswith("events.out.tfevents.")
    assert names[2:] == ["hparams.yaml", "metrics.json", "model.txt", "training.log"]
    assert (directory / "checkpoints" / "last.ckpt").is_file()


def test_the_log_has_the_run_once(first: Finished, runs: Path) -> None:
    text = (runs / "local" / "version_0" / "training.log").read_text()
    said = [line.split(" ", 1)[1] for line in text.splitlines()]
    assert said[0] == "training starts: 2 ranks, epochs 0 to 2, resumed from None"
    assert [line.split(":")[0] for line in said[1:3]] == [
        "epoch 0 at 16 pixels",
        "epoch 1 at 24 pixels",
    ]
    assert said[3].startswith("training ends after ")
    assert said[4].startswith("test: test_accuracy=")
    assert len(said) == 5


def test_validation_metrics_are_those_of_one_process(
    first: Finished, runs: Path, dataset: Path
) -> None:
    checkpoint = runs / "local" / "version_0" / "checkpoints" / "last.ckpt"
    module = ResNetModule.load_from_checkpoint(checkpoint, map_location="cpu").double().eval()
    images = ImageDataset(dataset, scan(dataset).val, EvalTransform(24))
    batch = Collate(24)([images[index] for index in range(17)])
    with torch.no_grad():
        scores = module(batch.images.double())
    last = epochs(runs, 0)[-1]
    loss = functional.cross_entropy(scores, batch.labels).item()
    assert last["val_loss"] == pytest.approx(loss, rel=1e-5)
    hits = int((scores.argmax(1) == batch.labels).sum())
    assert last["val_accuracy"] == pytest.approx(hits / 17, abs=1e-12)


def test_paths_are_equal_on_all_ranks_and_exist(journals: list[dict[str, Any]], runs: Path) -> None:
    for journal in journals:
        assert journal["log_dir"] == str(runs / "local" / "version_1")
        assert journal["best"] == journals[0]["best"]
    assert Path(journals[0]["best"]).is_file()


def test_one_rank_alone_writes(journals: list[dict[str, Any]]) -> None:
    names = {Path(path).name for path in journals[0]["written"]}
    assert {"version_1", "checkpoints", "hparams.yaml"} <= names
    assert journals[1]["written"] == []


def test_training_shards_are_disjoint_and_equally_long(journals: list[dict[str, Any]]) -> None:
    for epoch in (2, 3, 4):
        shards = [[b for e, _, b in journal["train"] if e == epoch] for journal in journals]
        assert [[len(batch) for batch in shard] for shard in shards] == [[8, 5], [8, 5]]
        delivered = [index for shard in shards for batch in shard for index in batch]
        assert len(set(delivered)) == 26


def test_validation_counts_each_image_once_in_equally_many_batches(
    journals: list[dict[str, Any]],
) -> None:
    for epoch in ("2", "3", "4"):
        shards = [journal["val"][epoch] for journal in journals]
        assert [[len(batch) for batch in shard] for shard in shards] == [[8, 1], [8, 0]]
        assert sorted(i for shard in shards for batch in shard for i in batch) == list(range(17))


def test_a_resumed_run_has_the_resolution_and_rate_of_its_epochs(
    journals: list[dict[str, Any]], runs: Path
) -> None:
    for journal in journals:
        assert {epoch: pixels for epoch, pixels, _ in journal["train"]} == {2: 24, 3: 32, 4: 32}
        assert journal["rates"] == journals[0]["rates"]
    records = epochs(runs, 1)
    assert [(r["epoch"], r["resolution"]) for r in records] == [(2, 24), (3, 32), (4, 32)]
    assert [r["learning_rate"] for r in records] == pytest.approx(journals[0]["rates"][::2])


def test_metrics_are_bit_equal_on_all_ranks(journals: list[dict[str, Any]]) -> None:
    assert len(journals[0]["metrics"]) == 3
    assert journals[0]["metrics"] == journals[1]["metrics"]


def test_training_loss_is_the_mean_over_the_samples_of_all_ranks(
    journals: list[dict[str, Any]], runs: Path
) -> None:
    for record in epochs(runs, 1):
        losses = [loss for journal in journals for loss in journal["losses"][str(record["epoch"])]]
        assert len(losses) == 26
        assert record["train_loss"] == pytest.approx(math.fsum(losses) / 26, rel=1e-12)


def test_agreements_hold_on_ranks_that_differ(journals: list[dict[str, Any]]) -> None:
    for journal in journals:
        assert journal["chosen"] == "by 0"
        assert journal["failed"] == "raised on rank 0"
        assert journal["problem"] == "of rank 1"
        assert journal["different"].startswith("the rank differs between ranks: '0' on rank 0, '1'")


def test_a_wrong_configuration_is_reported_once(tmp_path: Path) -> None:
    done = launch("-m", PROGRAM, f"--log-dir={tmp_path}", "--epochs=0", "--devices=2", ranks=2)
    (complaint,) = complaints(done)
    assert complaint.endswith(": epochs is 0; at least 1 is needed")
    assert re.search(r"exitcode +: 2 ", done.output), done.output
    assert "ConfigError" not in done.output


@pytest.fixture
def corrupt(dataset: Path, tmp_path: Path) -> Path:
    """The data set with one training image cut short."""
    root = shutil.copytree(dataset, tmp_path / "corrupt", ignore=shutil.ignore_patterns(".*"))
    image = root / "train" / "stripes00.0" / "00000.jpg"
    image.write_bytes(image.read_bytes()[:300])
    return root


def named(complaint: str, root: Path) -> bool:
    return f"{root}/train/stripes00.0/00000.jpg cannot be decoded" in complaint


def test_a_corrupt_image_is_reported_once_and_ends_all_ranks(corrupt: Path, tmp_path: Path) -> None:
    arguments = (f"--data={corrupt}", f"--log-dir={tmp_path / 'runs'}", "--epochs=1")
    done = launch("-m", PROGRAM, *arguments, *SMALL, ranks=2)
    assert done.returncode != 0
    (complaint,) = complaints(done)
    assert re.match("error: rank [01]: 1 of 44 images: ", complaint)
    assert named(complaint, corrupt)
    codes = [int(code) for code in re.findall(r"exitcode +: (-?\d+)", done.output)]
    assert len(codes) == 2
    assert set(codes) <= {2, -signal.SIGTERM}, "torchrun terminates the rank that is slower"
    assert done.output.count("Traceback") == 1, "torchrun's own"


def test_a_rank_that_fails_alone_is_named_and_ends_the_others(
    corrupt: Path, tmp_path: Path
) -> None:
    arguments = (f"--data={corrupt}", f"--log-dir={tmp_path / 'runs'}", "--epochs=1")
    done = launch("-m", PROGRAM, *arguments, "--no-check", "--devices=2", *SMALL)
    assert done.returncode != 0
    assert [named(complaint, corrupt) for complaint in complaints(done)].count(True) == 1
    assert len(complaints(done)) <= 2
    assert "Traceback" not in done.output
