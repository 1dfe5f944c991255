"""Modules that are found only because pytest has collected other files before.

With the import modes prepend and append, each test file adds its folder to ``sys.path``, and the
next file imports from there. A rank collects few of these files. The folders of the others are
searched last here, and are not on ``sys.path``, where pytest would find them and not add them.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class Elsewhere(importlib.abc.MetaPathFinder):
    """Searches the controller's ``sys.path`` after all other finders."""

    def __init__(self, path: Iterable[str]) -> None:
        self._path = [folder for folder in path if folder not in sys.path]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a top-level module in one of these folders."""
        return PathFinder.find_spec(fullname, self._path, target) if path is None else None
