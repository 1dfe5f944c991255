"""Which modules came into the pytest process with what it collected.

Many a package imports others by name: what is optional, all of its own submodules. No text shows
these, but ``sys.modules`` does.

Imported by every pytest run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

_KNOWN_TO_HOST = sys.stdlib_module_names | {"torch", "pytest", "_pytest", "pluggy", "pytest_ddp"}


class Coming:
    """Watches one session collect."""

    def __init__(self) -> None:
        self._known = set(sys.modules)
        self._came: list[tuple[str, tuple[str, ...]]] = []

    def note(self, file: str) -> None:
        """What is new came with this file, or, if it is empty, between two."""
        if len(sys.modules) == len(self._known):
            return
        new = [name for name in list(sys.modules) if name not in self._known]
        self._known.update(new)
        told = tuple(name for name in new if name.partition(".")[0] not in _KNOWN_TO_HOST)
        if told:
            self._came.append((file, told))

    def __iter__(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """What was collected, empty for between, and the modules in the order of their imports."""
        return iter(self._came)


COMING = pytest.StashKey[Coming]()
