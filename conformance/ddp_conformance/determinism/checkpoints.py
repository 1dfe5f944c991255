"""Checkpoints of training loops as files: a file, or a folder with all that lies below it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

MOST = 8
"""Files of a checkpoint that are taken away in turn, at most."""


def files_of(path: Path) -> list[Path]:
    """The files of a checkpoint, sorted; none if there is nothing."""
    found = [path] if path.is_file() else path.rglob("*")
    return sorted(one for one in found if one.is_file())


def chosen(sizes: Sequence[int]) -> list[int]:
    """The numbers of the files that are taken away: all, or the first, the last, the largest and
    others.

    Args:
        sizes: of the files in order, in bytes.
    """
    if len(sizes) <= MOST:
        return list(range(len(sizes)))
    largest = max(range(len(sizes)), key=lambda place: sizes[place])
    spread = [place * (len(sizes) - 1) // (MOST - 2) for place in range(MOST - 1)]
    return sorted({*spread, largest})


class KeptCheckpoint:
    """A checkpoint, and a copy of it from which it is brought back, by one rank."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._copy = path.with_name(f"{path.name} as it was")
        self.files = {_name(file, path): file for file in files_of(path)}
        """The path of each file, by name: in the folder, or in a folder of its own."""
        if self.files:
            _copy(path, self._copy)

    def some_files(self) -> list[str]:
        """The names of the files to take away in turn."""
        names = list(self.files)
        return [names[place] for place in chosen([f.stat().st_size for f in self.files.values()])]

    def leave_out(self, name: str) -> None:
        """Bring back all files of the checkpoint but one; no file if the name is empty."""
        shutil.rmtree(self._path) if self._path.is_dir() else self._path.unlink(missing_ok=True)
        _copy(self._copy, self._path)
        for file in [self.files[name]] if name else self.files.values():
            file.unlink()


def _name(file: Path, checkpoint: Path) -> str:
    return file.name if file == checkpoint else str(file.relative_to(checkpoint))


def _copy(source: Path, target: Path) -> None:
    """Copy a file or folder with links, times and modes as they are."""
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target)
