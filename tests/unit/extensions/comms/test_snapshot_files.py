"""The snapshots that a run asks its user to delete."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddp.extensions.comms.snapshot_files import path_of, unused, without_test


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "__comms__" / "test_train"
    folder.mkdir(parents=True)
    return folder


def item(folder: Path, test: str) -> Any:
    return SimpleNamespace(
        nodeid=f"test_train.py::{test}", path=folder.parents[1] / "test_train.py"
    )


def names(folder: Path, *tests: str, passed: str, used: str) -> list[str]:
    items = [item(folder, test) for test in tests]
    nodes = {f"test_train.py::{test}" for test in passed.split()}
    found = unused(items, nodes, {folder / f"{name}.txt" for name in used.split()})
    return [Path(path).stem for path in found]


def test_a_test_that_has_passed_names_what_it_has_not_used(folder: Path) -> None:
    for name in ("test_a", "test_a.first", "test_ab", "test_b"):
        (folder / f"{name}.txt").touch()
    tests = ("test_a", "test_ab", "test_b")
    assert names(folder, *tests, passed="test_a test_ab", used="test_a test_ab") == ["test_a.first"]
    assert names(folder, *tests, passed="test_ab", used="test_ab") == []
    assert names(folder, *tests, passed="test_b", used="") == ["test_b"]


def test_a_point_in_a_parameter_is_no_name(folder: Path) -> None:
    tests = ("test_a[1]", "test_a[1.5]")
    assert [path_of(item(folder, test), "").stem for test in tests] == ["test_a-1", "test_a-1.5"]
    (folder / "test_a-1.5.txt").touch()
    assert names(folder, *tests, passed="test_a[1]", used="") == []
    assert names(folder, *tests, passed="test_a[1] test_a[1.5]", used="") == ["test_a-1.5"]
    assert without_test([item(folder, "test_a[1]")]) == []
