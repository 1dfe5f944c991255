"""Act on a module as soon as something imports it, without importing it."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

Then = Callable[[ModuleType], None]


class ImportWatch(importlib.abc.MetaPathFinder):
    """Finds nothing by itself: it adds a step to the loading of the modules it watches."""

    def __init__(self) -> None:
        self._then: dict[str, Then] = {}

    def when_imported(self, name: str, then: Then) -> None:
        """Call ``then`` with the module: at once if it is there, or once it is."""
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
        """The file's own spec, whose loader will tell us; None for any other module."""
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

        # On this one loader, so that its type and whatever else it can do stay as they are.
        loader.exec_module = exec_module
        return spec
