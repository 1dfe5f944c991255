"""Whether a module is the user's own code, or an installed package."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from urllib.parse import unquote, urlsplit

from pytest_ddp.system.stdlib import json, os

_SITES = frozenset({"site-packages", "dist-packages"})
_OURS = "pytest_ddp"


class CodeOwnership:
    """Decides by the location of a top-level module, once for each.

    Own code is what is outside of the interpreter's library and its ``site-packages``: test files,
    modules on ``pythonpath``, editable installs. So is a distribution that was installed from a
    folder or file of this machine, by pip's record (``direct_url.json``, PEP 610): with
    ``pip install .`` in a CI job, the project under test is still the user's own code.
    """

    def __init__(self) -> None:
        paths = sysconfig.get_paths()
        self._library = tuple({paths["stdlib"], paths["platstdlib"]})
        self.is_own = functools.cache(self._is_own)

    def _is_own(self, top: str) -> bool:
        """Whether the top-level module or package of this name is the user's own."""
        if top == _OURS or top in sys.stdlib_module_names:
            return False
        if top in _installed_from_here():
            return True
        return any(not self._is_installed(place) for place in _places(top))

    def _is_installed(self, place: str) -> bool:
        parts = place.split(os.sep)
        return not _SITES.isdisjoint(parts) or place.startswith(self._library)


def top_of(module: str) -> str:
    """The top-level part of a dotted name."""
    return module.partition(".")[0]


def spec_of(top: str) -> ModuleSpec | None:
    """The spec of a top-level module; None if it is not found, or a finder raises."""
    try:
        return importlib.util.find_spec(top)
    except Exception:  # of a user's finder; the rank raises it again when it imports
        return None


@functools.cache
def _installed_from_here() -> frozenset[str]:
    found = (d for d in importlib.metadata.distributions() if _is_from_here(d))
    return frozenset(name for distribution in found for name in tops_of(distribution))


def _places(top: str) -> list[str]:
    """A top-level module's file, or the folders of a namespace package."""
    spec = spec_of(top)
    if spec is None:
        return []
    if spec.origin is None:
        return [os.path.abspath(place) for place in spec.submodule_search_locations or ()]
    return [os.path.abspath(spec.origin)] if spec.has_location else []


def _is_from_here(distribution: importlib.metadata.Distribution) -> bool:
    record = distribution.read_text("direct_url.json")
    try:
        url = urlsplit(json.loads(record)["url"] if record is not None else "")
    except (ValueError, LookupError, TypeError):
        return False
    # conda records a folder of its build machine.
    return url.scheme == "file" and os.path.exists(unquote(url.path))


def tops_of(distribution: importlib.metadata.Distribution) -> Iterator[str]:
    """Names of the top-level modules that a distribution has installed."""
    named = distribution.read_text("top_level.txt")
    if named is not None:
        yield from named.split()
        return
    for file in distribution.files or ():
        if file.suffix == ".py":
            yield file.parts[0].removesuffix(".py")
