"""Records which modules the pytest process imported with each collected file.

Many packages import others by a computed name: optional ones, or all of their submodules. Their
source does not show these imports, but ``sys.modules`` does.

Imported by every pytest run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

_KNOWN_TO_HOST = sys.stdlib_module_names | {"torch", "pytest", "_pytest", "pluggy", "pytest_ddp"}


class ImportLog:
    """The imports of one session's collection."""

    def __init__(self) -> None:
        self._seen = set(sys.modules)
        self._imports: list[tuple[str, tuple[str, ...]]] = []

    def note(self, file: str) -> None:
        """Record the new modules as imports of this file; empty for imports between two files."""
        # Compared by length first, since this runs for each collected file.
        if len(sys.modules) == len(self._seen):
            return
        new = [name for name in list(sys.modules) if name not in self._seen]
        self._seen.update(new)
        imported = tuple(name for name in new if name.partition(".")[0] not in _KNOWN_TO_HOST)
        if imported:
            self._imports.append((file, imported))

    def __iter__(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Pairs of a file, or empty for between files, and its modules in order of import."""
        return iter(self._imports)


IMPORT_LOG = pytest.StashKey[ImportLog]()
