"""The data set's stamps, and the data module's rebuilds and loaders."""

from __future__ import annotations

import logging
import random
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ddp_reference.windows.archive import ArchiveError, organize_bins_times, read_bin
from ddp_reference.windows.datamodule import GNNDataModule
from ddp_reference.windows.dataset import (
    MAIN_PROCESS,
    BinDataset,
    RepeatedIndex,
    Stamp,
    init_worker,
)
from torch.utils.data import DataLoader, Dataset


def make(archive: Path, **options: Any) -> GNNDataModule:
    data = GNNDataModule(
        archive,
        *("2024-01-01", "2024-01-04", "2024-01-10", "2024-01-12"),
        **{"batch_size": 4, **options},
    )
    data.setup("fit")
    return data


def test_an_item_is_the_file_and_its_origin(archive: Path) -> None:
    summary = organize_bins_times(archive, "2024-01-01", "2024-01-02")
    dataset = BinDataset(list(summary), summary, Stamp("w", 7, "token", rank=2))
    item, stored = dataset[1], read_bin(summary["bin_20240101T0800"].path)
    assert item.x.dtype == torch.float32
    assert item.x.tolist() == stored.x.tolist()
    assert item.edge_index.tolist() == stored.edge_index.tolist()
    assert item.y.tolist() == stored.y.tolist()
    assert (item.bin_name, item.window_id, item.token) == ("bin_20240101T0800", "w", "token")
    assert (item.sample_id.item(), item.version.item()) == (1, 7)
    assert item.origin.tolist() == [[2, MAIN_PROCESS]]
    assert not item.repeated.item()
    assert dataset[RepeatedIndex(1)].repeated.item()


def test_the_same_window_again_is_also_a_rebuild(archive: Path) -> None:
    data = make(archive)
    old = data.train
    data.set_train_window("2024-01-01", "2024-01-04")
    assert data.train.summary is not old.summary
    assert data.train.dataset.stamp.version == data.train_version == 2


def test_splits_have_their_own_versions(archive: Path) -> None:
    data = make(archive)
    val = data.val
    data.set_train_window("2024-01-02", "2024-01-05")
    assert (data.train_version, data.val_version) == (2, 1)
    assert data.val is val
    data.set_val_window("2024-01-11", "2024-01-12")
    assert (data.train_version, data.val_version) == (2, 2)
    assert data.val.dataset.stamp.version == 2


def test_setup_never_rebuilds(archive: Path) -> None:
    data = make(archive)
    data.set_train_window("2024-01-02", "2024-01-05")
    train, val = data.train, data.val
    data.setup("fit")
    assert data.train is train
    assert data.val is val


def test_a_failed_rebuild_leaves_the_old_data_in_force(archive: Path) -> None:
    data = make(archive)
    train, val = data.train, data.val
    with pytest.raises(ArchiveError, match="no bin in 2025"):
        data.set_train_window("2025-01-01", "2025-01-02")
    with pytest.raises(ArchiveError, match="no bin in 2025"):
        data.set_val_window("2025-01-01", "2025-01-02")
    with pytest.raises(ValueError, match="validation dates are out of order"):
        data.set_val_window("2024-01-02", "2024-01-01")
    assert data.train is train
    assert data.val is val
    assert (data.train_version, data.val_version, len(data.rebuilds)) == (1, 1, 2)


def test_every_rebuild_is_logged(archive: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="ddp_reference.windows"):
        data = make(archive)
        data.set_train_window("2024-01-02", "2024-01-05")
    assert [(r.split, r.version, r.rank, r.worker, r.bins) for r in data.rebuilds] == [
        ("train", 1, 0, None, 9),
        ("val", 1, 0, None, 6),
        ("train", 2, 0, None, 9),
    ]
    assert len({rebuild.token for rebuild in data.rebuilds}) == 3
    last = data.rebuilds[-1]
    assert last.token == data.train.dataset.stamp.token
    assert len(caplog.messages) == 3
    for part in ("version=2", "rank=0", "worker=None", last.token, last.window_id):
        assert part in caplog.messages[-1]


def test_data_before_setup_are_an_error(archive: Path) -> None:
    data = GNNDataModule(archive, "2024-01-01", "2024-01-04", "2024-01-10", "2024-01-12")
    assert data.train_version == data.val_version == 0
    with pytest.raises(RuntimeError, match="no training data yet; call setup"):
        data.train_dataloader()
    with pytest.raises(RuntimeError, match="no validation data yet; call setup"):
        data.val_dataloader()


def test_wrong_arguments_are_named(archive: Path) -> None:
    dates = ("2024-01-01", "2024-01-04", "2024-01-10", "2024-01-12")
    with pytest.raises(ValueError, match="batch_size is 0"):
        GNNDataModule(archive, *dates, batch_size=0)


def test_the_order_depends_on_the_seed(archive: Path) -> None:
    loaders = [make(archive, seed=seed).train_dataloader() for seed in (1, 2)]
    first, second = ([int(k) for batch in loader for k in batch.sample_id] for loader in loaders)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(9))


class Draws(Dataset[torch.Tensor]):
    """Draws from each of the three global generators, as an augmentation would."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([torch.rand(()).item(), np.random.random(), random.random()])


def draws_of_epoch(rank: int) -> list[list[float]]:
    """One row for each worker of ``rank``, in a process seeded like all the others."""
    init = partial(init_worker, stamp=Stamp(rank=rank), log_level=logging.WARNING)
    loader = DataLoader(Draws(), batch_size=1, num_workers=2, worker_init_fn=init)
    return [batch[0].tolist() for batch in loader]


def test_random_streams_differ_by_rank_worker_and_epoch() -> None:
    rows = []
    for rank in range(2):
        torch.manual_seed(0)
        rows += draws_of_epoch(rank) + draws_of_epoch(rank)
    for column in zip(*rows, strict=True):
        assert len(set(column)) == 2 * 2 * 2
    torch.manual_seed(0)
    assert draws_of_epoch(0) == rows[:2]


PROGRAM = """
import logging
import sys

from ddp_reference.windows.datamodule import GNNDataModule

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    dates = ("2024-01-01", "2024-01-04", "2024-01-10", "2024-01-12")
    data = GNNDataModule(
        sys.argv[1], *dates, batch_size=4, num_workers=2, multiprocessing_context=sys.argv[2]
    )
    data.setup("fit")
    for _ in data.train_dataloader():
        pass
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_loaders_and_workers_of_each_start_method_log(
    archive: Path, tmp_path: Path, method: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(archive), method]
    logged = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=True
    ).stderr
    workers = re.findall(r"worker reads: version=1 rank=0 worker=(\d) token=(\w+)", logged)
    assert sorted(number for number, _ in workers) == ["0", "1"], logged
    loader = r"new loader: id=\d+ sampler=PaddedSampler samples=\d+ version=1 rank=0 token=(\w+)"
    assert re.findall(loader, logged) == [workers[0][1]]
