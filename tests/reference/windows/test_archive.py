"""The archive on disk: layout, index, and what is wrong with it."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from ddp_reference.windows import make_data
from ddp_reference.windows.archive import (
    ArchiveError,
    archive_span,
    bin_path,
    feature_count,
    organize_bins_times,
    read_bin,
)
from ddp_reference.windows.make_data import ArchivePlan, make_archive

from tests.reference.launching import launch

START = datetime(2024, 1, 1)


@pytest.fixture
def copy(archive: Path, tmp_path: Path) -> Path:
    """An archive of the test's own, to damage."""
    return Path(shutil.copytree(archive, tmp_path / "data"))


def test_the_program_writes_the_documented_layout(tmp_path: Path) -> None:
    program = ("-m", "ddp_reference.windows.make_data", tmp_path / "data")
    done = launch(*program, "--days", "2", "--start", "2023-12-31")
    assert done.stdout == f"8 bins of 2 days in {tmp_path / 'data'}\n"
    assert done.returncode == 0
    assert (tmp_path / "data/2023/12/31/bin_20231231T1800.npz").is_file()
    assert (tmp_path / "data/2024/01/01/bin_20240101T0000.npz").is_file()


def test_the_same_plan_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_archive(tmp_path / name, ArchivePlan(START, days=1, seed=3))
    make_archive(tmp_path / "c", ArchivePlan(START, days=1, seed=4))
    a, b, c = (bin_path(tmp_path / name, START).read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_graphs_are_valid_and_differ_in_size(archive: Path) -> None:
    bins = organize_bins_times(archive, "2024-01-01", "2024-01-21")
    arrays = [read_bin(bin_file.path) for bin_file in bins.values()]
    assert len(arrays) == 60
    assert len({len(graph.x) for graph in arrays}) > 1
    for graph in arrays:
        assert graph.x.shape[1] == feature_count(archive)
        assert graph.x.dtype == np.float32
        assert graph.edge_index.min() >= 0
        assert graph.edge_index.max() < len(graph.x)
        assert not (graph.edge_index[0] == graph.edge_index[1]).any()
        assert np.isfinite(graph.y).all()


def test_an_archive_is_never_mixed_with_other_files(archive: Path) -> None:
    with pytest.raises(ValueError, match="is not an empty folder; choose a new one"):
        make_archive(archive, ArchivePlan(START, days=1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--days", "0"], "days is 0; at least 1"),
        (["--days", "1", "--bin-hours", "7"], "it must divide 24"),
        (["--days", "1", "--stations", "2"], "stations is 2; at least 6"),
        (["--days", "1", "--start", "soon"], "'soon' is no date"),
    ],
)
def test_wrong_arguments_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as raised:
        make_data.main([str(tmp_path / "data"), *arguments])
    assert raised.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_the_index_follows_time_and_excludes_the_end(archive: Path) -> None:
    bins = organize_bins_times(archive, "2024-01-02T08:00", "2024-01-03T16:00")
    assert list(bins) == [
        "bin_20240102T0800",
        "bin_20240102T1600",
        "bin_20240103T0000",
        "bin_20240103T0800",
    ]
    assert [b.time for b in bins.values()] == sorted(b.time for b in bins.values())
    assert all(b.path.is_file() and b.name == name for name, b in bins.items())


def test_gaps_are_no_error(copy: Path) -> None:
    shutil.rmtree(copy / "2024/01/02")
    bins = organize_bins_times(copy, "2024-01-01", "2024-01-04")
    assert len(bins) == 6


def test_the_span_is_in_whole_days(copy: Path) -> None:
    shutil.rmtree(copy / "2024/01/01")
    for path in (copy / "2024/01/20").iterdir():
        path.unlink()
    assert archive_span(copy).id == "2024-01-02T00:00/2024-01-20T00:00"


def test_a_write_in_progress_is_no_bin(copy: Path) -> None:
    (copy / "2024/01/01/.bin_20240101T0000.npz.17.part").touch()
    assert len(organize_bins_times(copy, "2024-01-01", "2024-01-02")) == 3


def test_the_error_for_an_empty_window_has_what_is_there(archive: Path) -> None:
    with pytest.raises(ArchiveError, match=r"no bin in 2025-.* holds 2024-01-01T00:00/2024-01-21"):
        organize_bins_times(archive, "2025-01-01", "2025-01-02")


def test_the_error_for_an_empty_folder_has_how_to_fill_it(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match=r"holds no YYYY.* -m ddp_reference.windows.make_data"):
        organize_bins_times(tmp_path, "2024-01-01", "2024-01-02")
    with pytest.raises(ArchiveError, match="is no folder"):
        archive_span(tmp_path / "missing")


def test_foreign_and_misplaced_files_are_named(copy: Path) -> None:
    stranger = copy / "2024/01/01/notes.txt"
    stranger.touch()
    with pytest.raises(ArchiveError, match=r"notes.txt is no bin_"):
        organize_bins_times(copy, "2024-01-01", "2024-01-02")
    stranger.unlink()
    bin_path(copy, START).rename(copy / "2024/01/02/bin_20240101T0000.npz")
    with pytest.raises(ArchiveError, match="move it to 2024/01/01"):
        organize_bins_times(copy, "2024-01-02", "2024-01-03")


def test_damaged_bins_are_named(copy: Path) -> None:
    path = bin_path(copy, START)
    whole = path.read_bytes()
    for damaged in (b"", b"not a zip", whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(ArchiveError, match=f"cannot read {path}"):
            read_bin(path)
    np.savez(path, x=np.zeros((2, 5)))
    with pytest.raises(ArchiveError, match="edge_index"):
        read_bin(path)
    np.savez(path, x=np.zeros(2), edge_index=np.zeros((2, 0)), y=np.zeros(1))
    with pytest.raises(ArchiveError, match=r"has shapes x\(2,\)"):
        read_bin(path)
    with pytest.raises(ArchiveError, match="cannot read"):
        read_bin(path.with_name("bin_20240101T0001.npz"))
