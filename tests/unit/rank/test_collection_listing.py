"""A rank lists of a folder what is on the way to its file, and pytest's own listing comes back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import _pytest.main
import _pytest.python

from pytest_ddp.rank.startup import collection

MAIN: Any = _pytest.main
PYTHON: Any = _pytest.python


def test_only_the_way_is_listed(tmp_path: Path) -> None:
    for name in ("b/test_it.py", "b/test_other.py", "a/test_other.py", "b/conftest.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    ways = [tmp_path / "b", tmp_path / "b" / "test_it.py"]
    with collection._listed(ways):
        names = [[entry.name for entry in MAIN.scandir(at)] for at in (tmp_path, ways[0])]
        assert names == [["b"], ["test_it.py"]]
        assert PYTHON.scandir(tmp_path / "none") == []


def test_entries_come_in_the_order_that_is_asked_for(tmp_path: Path) -> None:
    ways = [tmp_path / name for name in "cab"]
    for way in ways:
        way.touch()

    def backwards(entry: os.DirEntry[str]) -> int:
        return -ord(entry.name)

    with collection._listed(ways):
        assert [entry.name for entry in MAIN.scandir(tmp_path)] == ["a", "b", "c"]
        listed = PYTHON.scandir(tmp_path, backwards)
        assert [entry.name for entry in listed] == ["c", "b", "a"]


def test_pytest_lists_by_itself_afterwards(tmp_path: Path) -> None:
    before = MAIN.scandir, PYTHON.scandir
    with collection._listed(()):
        assert (MAIN.scandir, PYTHON.scandir) != before
    assert (MAIN.scandir, PYTHON.scandir) == before
    (tmp_path / "seen").touch()
    assert [entry.name for entry in MAIN.scandir(tmp_path)] == ["seen"]
