"""Fixtures that replace pytest's own on ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

_directory = ""


def set_tmp_path(directory: str) -> None:
    """Set the folder that the controller has chosen for the test."""
    global _directory
    _directory = directory


def tmp_path_now() -> str:
    """The folder of the running test, which exists once a rank has used it."""
    return _directory


@pytest.fixture
def tmp_path() -> Path:
    """A folder for the test: the same on all ranks, unless a plugin gives each rank its own."""
    path = Path(_directory)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path
