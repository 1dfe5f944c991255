"""The program: config errors in this process, real runs in processes of their own."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from ddp_reference.windows.__main__ import main
from ddp_reference.windows.archive import bin_path
from ddp_reference.windows.callbacks import ResampleDataCallback, SequentialDataCallback
from ddp_reference.windows.config import read_config
from ddp_reference.windows.window import DateWindow, random_window
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)

from tests.reference.launching import launch
from tests.reference.windows.helpers import fields
from tests.reference.windows.marks import LIGHTNING_WARNINGS

pytestmark = LIGHTNING_WARNINGS

PROGRAM = "ddp_reference.windows"
WINDOWS = ["--window-days", "5", "--val-window-days", "3"]
SPAN = DateWindow.of("2024-01-01", "2024-01-17")
"""The training dates that the program takes from the archive: all but its last fifth."""


def run_main(archive: Path, *arguments: str) -> int:
    return main([str(archive), "--epochs", "1", *WINDOWS, *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--train-start", "2024-01-09", "--train-end", "2024-01-02"], "training dates are out of"),
        (["--window-days", "300"], "a training window of 300 days is longer than the training"),
        (["--val-window-days", "300"], "a validation window of 300 days is longer"),
        (["--val-start", "2024-01-19"], "a validation window of 3 days is longer"),
        (["--train-end", "2024-02-09"], "--train-end 2024-02-09 lies outside the archive, which"),
        (["--train-end", "2024-01-15", "--val-start", "2024-01-10"], "overlap"),
        (["--val-start", "never"], "'never' is no date"),
        (["--epochs", "0"], "--epochs is 0; at least 1"),
        (["--batch-size", "0"], "--batch-size is 0; at least 1"),
        (["--stride-days", "0"], "--stride-days is 0; at least 1"),
        (["--workers", "-1"], "--workers is -1; at least 0"),
        (["--devices", "0"], "--devices is 0; at least 1"),
        (["--mode", "both"], "invalid choice: 'both'"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate; see --help"),
        (["--resume", "--log-dir", "/nonexistent"], "nothing to resume: /nonexistent/checkpoints"),
    ],
)
def test_config_errors_are_one_clear_line(
    archive: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run_main(archive, *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_a_damaged_bin_ends_the_run_by_name(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(archive, tmp_path / "data"))
    damaged = bin_path(copy, SPAN.end + timedelta(days=1))
    damaged.write_bytes(b"damaged")
    assert run_main(copy, "--log-dir", str(tmp_path / "log")) == 1
    assert f"error on rank 0: cannot read {damaged}" in capsys.readouterr().err
    assert f"cannot read {damaged}" in (tmp_path / "log/train.log").read_text()


def test_defaults_come_from_archive_and_launcher(archive: Path) -> None:
    base = [str(archive), "--epochs", "1", *WINDOWS]
    alone = read_config(base, {})
    assert alone.train_dates == SPAN
    assert alone.val_dates == DateWindow.of("2024-01-17", "2024-01-21")
    assert (alone.devices, alone.nodes) == (1, 1)
    torchrun = {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "6"}
    launched = read_config(base, torchrun)
    assert (launched.devices, launched.nodes) == (2, 3)
    with pytest.raises(ValueError, match="--devices is 4, but torchrun launched 2"):
        read_config([*base, "--devices", "4"], torchrun)


def test_dates_on_one_side_cut_the_other(archive: Path) -> None:
    base = [str(archive), "--epochs", "1", *WINDOWS]
    assert read_config([*base, "--val-start", "2024-01-11"], {}).train_dates.end.day == 11
    assert read_config([*base, "--train-end", "2024-01-11"], {}).val_dates.start.day == 11


def test_the_mode_picks_the_callback(archive: Path) -> None:
    base = [str(archive), "--epochs", "1", *WINDOWS, "--mode"]
    assert isinstance(read_config([*base, "random"], {}).window_callback(), ResampleDataCallback)
    sequential = read_config([*base, "sequential"], {}).window_callback()
    assert isinstance(sequential, SequentialDataCallback)
    both = read_config([*base, "sequential", "--resample-val"], {}).window_callback()
    assert isinstance(both, ResampleDataCallback)
    assert (both.mode, both.resample_val) == ("sequential", True)


@pytest.fixture(scope="module")
def first_run(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Log folder of three epochs on two ranks of Lightning's own launcher."""
    folder = tmp_path_factory.mktemp("run") / "log"
    options = ["--epochs", "3", "--devices", "2", "--batch-size", "2", "--log-dir", str(folder)]
    done = launch("-m", PROGRAM, archive, *WINDOWS, *options)
    assert done.returncode == 0, done.stderr
    assert "Starting with 2 processes" in done.stderr
    assert "Epoch 2: 100%" in done.stdout
    return folder


def test_a_run_leaves_log_events_and_checkpoints(first_run: Path) -> None:
    lines = (first_run / "train.log").read_text().splitlines()
    assert lines[0] == "start epoch=0 ranks=2"
    assert lines[-1] == "end epoch=3"
    epochs = [fields(line) for line in lines[1:-1]]
    drawn = [random_window(SPAN, 5, seed=42, draw=draw).id for draw in range(3)]
    assert [epoch["train_window"] for epoch in epochs] == drawn
    losses = [float(epoch["val_loss"]) for epoch in epochs]
    assert losses[-1] < losses[0]
    events = list((first_run / "tensorboard").rglob("events.out.tfevents.*"))
    assert len(events) == 1
    accumulator = EventAccumulator(str(events[0])).Reload()
    assert [event.value for event in accumulator.Scalars("val_loss")] == pytest.approx(
        losses, abs=1e-6
    )
    assert (first_run / "checkpoints/last.ckpt").is_file()
    assert (first_run / "checkpoints/best.ckpt").is_file()


def test_torchrun_resumes_with_the_windows_that_follow(
    archive: Path, first_run: Path, tmp_path: Path
) -> None:
    log_dir = Path(shutil.copytree(first_run, tmp_path / "log"))
    options = ["--epochs", "5", "--batch-size", "2", "--resume", "--log-dir", str(log_dir)]
    done = launch("-m", PROGRAM, archive, *WINDOWS, *options, ranks=2)
    assert done.returncode == 0, done.stderr
    lines = (log_dir / "train.log").read_text().splitlines()[5:]
    assert lines[0] == "start epoch=3 ranks=2"
    epochs = [fields(line) for line in lines[1:-1]]
    drawn = [random_window(SPAN, 5, seed=42, draw=draw).id for draw in (3, 4)]
    assert [epoch["train_window"] for epoch in epochs] == drawn
    assert [epoch["train_version"] for epoch in epochs] == ["4", "5"]
    assert lines[-1] == "end epoch=5"


def test_torchrun_reports_a_config_error_once(archive: Path) -> None:
    done = launch("-m", PROGRAM, archive, "--epochs", "1", "--window-days", "300", ranks=2)
    assert done.returncode != 0
    assert done.stderr.count("error: a training window of 300 days is longer") == 1
    assert "Traceback" not in done.stderr.partition("torch/distributed")[0]
