"""The import system as the last collection left it.

Plain pytest imports every test file before the first test runs; a rank that is kept imports a file
when its first test is due. What earlier tests did to ``sys.path``, to finders or to
``sys.modules``, and did not undo, must not affect that import: with an empty path pytest cannot
import, and a file that found a fake module would run other tests than its own.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

_MISSING: Any = object()


class Imports:
    """Swaps the import system's state: the last collection's for imports, the tests' afterwards."""

    def __init__(self) -> None:
        self._lists: list[list[Any]] = []
        self._modules: dict[str, ModuleType] = {}

    @contextlib.contextmanager
    def as_collected(self) -> Iterator[None]:
        """Import in the block as if no test had run since the last such block."""
        theirs, displaced = _lists(), self._put_modules_back()
        for live, before in zip(_live(), self._lists, strict=False):
            live[:] = before
        before = _lists()
        try:
            yield
        finally:
            self._lists, self._modules = _lists(), dict(sys.modules)
            for live, old, tests in zip(_live(), before, theirs, strict=True):
                live[:] = _with_new(tests, old, live)
            for name, module in displaced.items():
                if module is _MISSING:
                    sys.modules.pop(name, None)
                else:
                    sys.modules[name] = module

    def _put_modules_back(self) -> dict[str, ModuleType]:
        """Restore collected modules; returns what they replace, ``_MISSING`` for nothing."""
        if not self._modules:
            return {}
        now = dict(sys.modules)
        changed = [name for name, module in self._modules.items() if now.get(name) is not module]
        fakes = [name for name in now.keys() - self._modules.keys() if _is_fake(name, now)]
        sys.modules.update((name, self._modules[name]) for name in changed)
        for name in fakes:
            del sys.modules[name]
        return {name: now.get(name, _MISSING) for name in (*changed, *fakes)}


def _is_fake(name: str, modules: dict[str, ModuleType]) -> bool:
    """Whether a test has made the module's top-level module by hand.

    Below a real package, libraries make modules by hand as well.
    """
    top = modules.get(name.partition(".")[0])
    return getattr(top, "__spec__", None) is None


def _live() -> tuple[list[Any], ...]:
    return sys.path, sys.meta_path, sys.path_hooks


def _lists() -> list[list[Any]]:
    return [list(live) for live in _live()]


def _with_new(tests: list[Any], before: list[Any], after: list[Any]) -> list[Any]:
    """The tests' entries and those that collection added, on the side where it added them."""
    new = [entry for entry in after if entry not in before and entry not in tests]
    return [*new, *tests] if after[: len(new)] == new else [*tests, *new]
