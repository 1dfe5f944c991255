"""Fixtures that ranks see in place of pytest's own."""

from __future__ import annotations

from pathlib import Path

import pytest

_shared: Path | None = None


def share_tmp_path(directory: str | None) -> None:
    """Set the directory that the controller made for the test."""
    global _shared
    _shared = None if directory is None else Path(directory)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest) -> Path:
    """A directory of the test: the same one on all ranks, made once."""
    if _shared is None:
        pytest.fail(
            f"{request.node.nodeid}: tmp_path was asked for while the test ran, by "
            "request.getfixturevalue. Ranks share one directory, made before: take tmp_path "
            "as an argument of the test or of one of its fixtures."
        )
    return _shared
