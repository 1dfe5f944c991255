"""Limits and directories: what is enough, what is little, what is too little."""

from __future__ import annotations

import os
import resource
import tempfile
from pathlib import Path

import pytest

from pytest_ddp.extensions.doctor import system
from pytest_ddp.extensions.doctor.findings import CheckResult, Level


def about(topic: str) -> CheckResult:
    (found,) = (finding for finding in system.findings() if finding.topic == topic)
    return found


@pytest.mark.parametrize(
    ("hard", "level", "ranks"),
    [(64, Level.STOP, 0), (256, Level.NOTE, 19), (1024, Level.OK, 96)],
)
def test_descriptors(monkeypatch: pytest.MonkeyPatch, hard: int, level: Level, ranks: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, hard))
    found = about("descriptors")
    assert found.level is level
    assert f"some {ranks} ranks" in found.text
    assert ("ulimit -Hn" in found.fix) is (level is not Level.OK)


@pytest.mark.parametrize(("left", "level"), [(8, Level.STOP), (100, Level.NOTE), (9999, Level.OK)])
def test_processes(monkeypatch: pytest.MonkeyPatch, left: int, level: Level) -> None:
    monkeypatch.setattr(system, "_group_limit", lambda: {"pids.max": left})
    found = about("processes")
    assert found.level is level
    assert str(left) in found.text
    assert ("--pids-limit" in found.fix) is (level is not Level.OK)


def test_a_small_shm_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "_SMALL_SHM", 1 << 60)
    assert about("/dev/shm").level is Level.NOTE
    assert "--shm-size" in about("/dev/shm").fix


def test_no_temporary_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr("pytest_ddp.system.stdlib.tempfile.gettempdir", fail)
    found = about("TMPDIR")
    assert found.level is Level.STOP
    assert "No usable" in found.text


def test_a_long_temporary_directory_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * 90)
    found = about("TMPDIR")
    assert found.level is Level.STOP
    assert "91 characters" in found.text
    assert found.fix.startswith("Set TMPDIR")


def test_folders_of_the_dead_are_reported_and_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert about("leftovers").level is Level.OK
    os.mkdir(tmp_path / "pddp-dead")
    found = about("leftovers")
    assert found.level is Level.NOTE
    assert "pddp-dead" in found.text
    assert (tmp_path / "pddp-dead").exists(), "it is the next session that removes them"
