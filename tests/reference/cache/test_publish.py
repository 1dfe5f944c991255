"""One cache on several ranks: built once, equal everywhere, paid for once."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from ddp_reference.cache import CacheError, LatentCache, Recipe, build

from tests.reference.launching import launch

MIB = 48

Report = dict[str, Any]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of two ranks of a real torchrun; one launch for all tests of the file."""
    directory = tmp_path_factory.mktemp("ranks")
    script = str(Path(__file__).with_name("ranks.py"))
    done = launch(script, directory, str(MIB), ranks=2)
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope="module")
def reports(directory: Path) -> list[Report]:
    return [json.loads((directory / f"rank{rank}.json").read_text()) for rank in range(2)]


def test_one_rank_builds_and_all_read_the_complete_cache(
    directory: Path, reports: list[Report]
) -> None:
    assert (directory / f"built{MIB * 256}").read_text() == "0\n"
    with LatentCache.open(directory / "large.pt") as cache:
        expected = {"count": MIB * 256, "digest": cache.digest}
        total = float(cache.tensor("latent").sum())
    for report in reports:
        assert {key: report["large"][key] for key in expected} == expected
        assert report["file"] == expected
        assert report["large"]["sums"] == [total]


def test_ranks_and_their_workers_pay_for_the_cache_once(reports: list[Report]) -> None:
    """Proportional set size: a page that six processes map counts a sixth for each."""
    readers = {pid for report in reports for pid in report["large"]["readers"]}
    assert len(readers) == 4
    segment = sum(report["large"]["segment"] for report in reports)
    assert segment / (MIB << 20) == pytest.approx(1.0, abs=0.02)
    grown = sum(report["large"]["pss"] - report["small"]["pss"] for report in reports)
    assert grown / (MIB << 20) < 1.25


def test_nothing_but_the_caches_is_left_beside_them(directory: Path) -> None:
    left = {path.name for path in directory.iterdir()}
    built = {"built1", f"built{MIB * 256}"}
    assert left == {"small.pt", "large.pt", "cut.pt", "rank0.json", "rank1.json", *built}


def test_a_bad_file_is_refused_on_every_rank_alike(reports: list[Report]) -> None:
    for report in reports:
        assert report["cut"]["error"] == "CacheError"
        assert "cut.pt" in report["cut"]["text"]
        assert "truncated" in report["cut"]["text"]


def test_a_producers_error_reaches_the_rank_that_waited(reports: list[Report]) -> None:
    first, second = (report["producer"] for report in reports)
    assert first == {"error": "ZeroDivisionError", "text": "no samples today"}
    assert second["error"] == "RuntimeError"
    assert "rank 0 could not open" in second["text"]
    assert "ZeroDivisionError: no samples today" in second["text"]


def test_ranks_that_would_read_different_caches_all_refuse(reports: list[Report]) -> None:
    for report in reports:
        assert report["different"]["error"] == "RuntimeError"
        assert "rank 0: 1 of " in report["different"]["text"]
        assert f"rank 1: {MIB * 256} of " in report["different"]["text"]


def test_a_bad_file_is_not_built_over(tmp_path: Path) -> None:
    path = tmp_path / "bad.pt"
    path.write_bytes(b"PK\x03\x04 something that someone may still want")
    with pytest.raises(CacheError, match="truncated"):
        build(path, Recipe(lambda: {"x": torch.ones(3)}, "never"))
    assert path.read_bytes().endswith(b"want")
