"""Tests that share a server of forks go to one process of pytest-xdist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from conformance import scheduling

HERE = Path(__file__).parent


def scope(nodeid: str) -> str:
    scheduler = scheduling.ByServer.__new__(scheduling.ByServer)
    return scheduler._split_scope(nodeid)


@pytest.mark.parametrize("files", scheduling.SERVERS.values(), ids=list(scheduling.SERVERS))
def test_files_of_one_server_are_there_and_go_together(files: Sequence[str]) -> None:
    assert all((HERE / f"{name}.py").exists() for name in files)
    assert len({scope(f"conformance/{name}.py::test_a[ws2-b]") for name in files}) == 1


def test_other_files_go_by_themselves() -> None:
    mine = "conformance/test_scheduling.py"
    assert scope(f"{mine}::test_a") == scope(f"{mine}::test_b[c]") == mine


@pytest.mark.parametrize(("dist", "ours"), [("loadfile", True), ("load", False), ("no", False)])
def test_only_loadfile_is_changed(
    monkeypatch: pytest.MonkeyPatch, dist: str, *, ours: bool
) -> None:
    options: Mapping[str, Any] = {"dist": dist}
    config: Any = type("Config", (), {"getoption": staticmethod(options.__getitem__)})()
    monkeypatch.setattr(scheduling, "ByServer", lambda config, log: "ours")
    log: Any = None
    assert scheduling.make(config, log) == ("ours" if ours else None)
