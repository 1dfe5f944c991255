"""What two real ranks under torchrun deliver and report."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.reference.launching import launch
from tests.reference.windows import probe
from tests.reference.windows.helpers import fields

Ranks = list[dict[str, Any]]
RUNS = pytest.mark.parametrize("run", ["uneven", "single"])
EPOCHS = range(3)


@pytest.fixture(scope="module")
def out(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probe")
    done = launch("-m", probe.__name__, archive, folder, ranks=2)
    assert done.returncode == 0, done.stderr
    return folder


def ranks(out: Path, run: str) -> Ranks:
    return [json.loads((out / f"rank{rank}.json").read_text())[run] for rank in range(2)]


def delivered(rank: dict[str, Any], stage: str, epoch: int) -> list[dict[str, Any]]:
    return [d for d in rank["deliveries"] if (d["stage"], d["epoch"]) == (stage, epoch)]


@RUNS
def test_training_shards_are_even_and_cover_the_window(out: Path, run: str) -> None:
    for epoch in EPOCHS:
        shards = [delivered(rank, "train", epoch) for rank in ranks(out, run)]
        assert [len(shard) for shard in shards] == [8, 8]
        first = [d["sample"] for shard in shards for d in shard if not d["repeated"]]
        assert sorted(first) == list(range(15))


@pytest.mark.parametrize(("run", "count"), [("uneven", 9), ("single", 1)])
def test_validation_counts_every_sample_once(out: Path, run: str, count: int) -> None:
    for epoch in EPOCHS:
        counted = Counter(
            d["sample"]
            for rank in ranks(out, run)
            for d in delivered(rank, "val", epoch)
            if not d["repeated"]
        )
        assert counted == Counter(range(count))


@RUNS
def test_the_order_changes_from_epoch_to_epoch(out: Path, run: str) -> None:
    for rank in ranks(out, run):
        orders = {tuple(d["sample"] for d in delivered(rank, "train", e)) for e in EPOCHS}
        assert len(orders) == len(EPOCHS)


@pytest.mark.parametrize(("run", "worker"), [("uneven", 0), ("single", -1)])
def test_samples_know_the_rank_and_worker_that_read_them(out: Path, run: str, worker: int) -> None:
    for number, rank in enumerate(ranks(out, run)):
        assert {(d["rank"], d["worker"]) for d in rank["deliveries"]} == {(number, worker)}
        assert {r["rank"] for r in rank["rebuilds"]} == {number}
        assert len({r["token"] for r in rank["rebuilds"]}) == len(rank["rebuilds"]) == 5


@RUNS
@pytest.mark.parametrize("name", ["train_loss", "val_loss", "val_rmse"])
def test_metrics_are_those_of_all_samples(out: Path, run: str, name: str) -> None:
    both = ranks(out, run)
    stage = name.partition("_")[0]
    for epoch in EPOCHS:
        reported = {rank["metrics"][epoch][name] for rank in both}
        assert len(reported) == 1, "ranks report different values"
        squared = [value for rank in both for value in rank["squared"][stage][epoch]]
        mean = math.fsum(squared) / len(squared)
        expected = math.sqrt(mean) if name.endswith("rmse") else mean
        assert float.fromhex(reported.pop()) == pytest.approx(expected, rel=1e-6)


@RUNS
def test_ranks_end_with_the_same_parameters(out: Path, run: str) -> None:
    first, second = ranks(out, run)
    assert first["parameters"] == second["parameters"]


@RUNS
def test_one_rank_writes_the_log(out: Path, run: str) -> None:
    lines = (out / f"{run}.log").read_text().splitlines()
    assert len(lines) == 5
    assert [fields(line)["epoch"] for line in lines] == ["0", "0", "1", "2", "3"]
    reported = [float.fromhex(m["val_loss"]) for m in ranks(out, run)[0]["metrics"]]
    written = [float(fields(line)["val_loss"]) for line in lines[1:-1]]
    assert written == pytest.approx(reported, abs=1e-6)
    assert all(re.fullmatch(r"(start|end|epoch=\d)( ?\w+=\S+)*", line) for line in lines)
