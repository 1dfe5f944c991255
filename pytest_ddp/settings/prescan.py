"""Guesses during collection whether there will be a ddp test, so that the host can start early.

Both errors are harmless: a host that is not needed is ended when collection ends, and a ddp test
that was not expected starts the host when it is collected, or at the end of the collection at the
latest.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

_MARKED = rb"^[ \t]*@(pytest\.)?mark\.ddp\b|^pytestmark\b.*\bddp\b"
"""A mark at the beginning of a line."""


class Prescan:
    """Guesses for one session, from the files that it collects and its command line."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def in_module(self, path: Path, session: pytest.Session) -> bool:
        """Guess whether a module has ddp tests, before it is imported."""
        return self._takes_all and self._is_collected(path, session) and looks_marked(path)

    def in_item(self, item: pytest.Item) -> bool:
        """True for a ddp test that no ``-k`` or ``-m`` may deselect.

        What they deselect is only known when collection ends.
        """
        option = self._config.option
        if option.keyword or option.markexpr:
            return False
        return item.get_closest_marker("ddp") is not None

    @functools.cached_property
    def _takes_all(self) -> bool:
        """True unless the command line selects single tests of files."""
        option = self._config.option
        selected = any("::" in argument for argument in self._config.args)
        return not (selected or option.keyword or option.markexpr or option.collectonly)

    def _is_collected(self, path: Path, session: pytest.Session) -> bool:
        # pytest creates a module for each file of the folder, and collects only the given one.
        if not any(session.isinitpath(around) for around in (path, *path.parents)):
            return False
        return not self._last_failed or path in self._last_failed

    @functools.cached_property
    def _last_failed(self) -> frozenset[Path]:
        """The files to which ``--lf`` restricts the run; empty for all of them."""
        if not getattr(self._config.option, "lf", False) or self._config.cache is None:
            return frozenset()
        nodeids = self._config.cache.get("cache/lastfailed", {})
        return frozenset(self._config.rootpath / nodeid.split("::")[0] for nodeid in nodeids)


def looks_marked(path: Path) -> bool:
    """Guess from the text of a test file, before it is imported, whether it has ddp tests."""
    if path.suffix != ".py" or path.name == "conftest.py":
        return False
    try:
        text = path.read_bytes()
    except OSError:
        return False
    return b"ddp" in text and re.search(_MARKED, text, re.MULTILINE) is not None
