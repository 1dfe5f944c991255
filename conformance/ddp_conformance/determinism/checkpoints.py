"""Checkpoints of training loops as files: a file, or a folder with all that lies below it."""

from __future__ import annotations

from pathlib import Path


def files_of(path: Path) -> list[Path]:
    """The files of a checkpoint, sorted; none if there is nothing."""
    found = [path] if path.is_file() else path.rglob("*")
    return sorted(one for one in found if one.is_file())
