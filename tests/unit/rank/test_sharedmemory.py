"""The directory of a daemon is found while its clients are killed."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pytest_ddp.rank.cleanup import leftovers


@pytest.fixture
def folder() -> Iterator[Path]:
    """As the daemon's, with its socket, which this process has open."""
    # Not tmp_path, which may be too long for the name of a socket.
    with TemporaryDirectory(prefix="torch-shm-dir-") as name, socket.socket(socket.AF_UNIX) as own:
        own.bind(f"{name}/manager.sock")
        yield Path(name)


def test_the_folder_of_a_living_daemon(folder: Path) -> None:
    assert folder in leftovers.manager_folders(os.getpid())


def test_descriptors_that_are_closed_meanwhile(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.readlink
    closed: list[object] = []

    def readlink(entry: Path) -> str:
        target = read(entry)
        if not target.startswith("socket:"):
            closed.append(entry)
            raise FileNotFoundError(entry)
        return target

    monkeypatch.setattr("pytest_ddp.system.stdlib.os.readlink", readlink)
    assert folder in leftovers.manager_folders(os.getpid())
    assert closed


def test_a_process_that_is_gone() -> None:
    assert leftovers.manager_folders(2**22 + 1) == set()
