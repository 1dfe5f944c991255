"""Fixtures that ranks see in place of pytest's own."""

from __future__ import annotations

from pathlib import Path

import pytest

_directory = ""


def set_tmp_path(directory: str) -> None:
    """Set the directory that the controller has named for the test."""
    global _directory
    _directory = directory


@pytest.fixture
def tmp_path() -> Path:
    """A directory of the test: the same one on all ranks, if a plugin did not ask for others."""
    path = Path(_directory)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path
