"""Run a callback when a module is imported, without importing it."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

Then = Callable[[ModuleType], None]


class ImportWatch(importlib.abc.MetaPathFinder):
    """A finder that finds no modules of its own: it adds a step to the loading of watched ones."""

    def __init__(self) -> None:
        self._then: dict[str, Then] = {}

    def when_imported(self, name: str, then: Then) -> None:
        """Call ``then`` with the module: at once if it is imported already, else when it is."""
        module = sys.modules.get(name)
        if module is not None:
            then(module)
            return
        self._then[name] = then
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a watched module, with a loader that runs the callback; None for others."""
        if fullname not in self._then:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            then = self._then.pop(fullname, None)
            if then is not None:
                then(module)

        # Set on this one loader, so that its type and its other methods stay as they are.
        loader.exec_module = exec_module
        return spec
