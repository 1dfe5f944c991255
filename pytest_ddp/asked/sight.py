"""Whether a ddp test is in sight while pytest still collects, so that the host may start.

A guess may be wrong in one direction only: a host that nobody needs is ended when
collection ends, and a test that nobody foresaw starts it when it is collected, or at the
end of the collection at the latest.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

_MARKED = rb"^[ \t]*@(pytest\.)?mark\.ddp\b|^pytestmark\b.*\bddp\b"
"""A mark at the begin of a line."""


class Sight:
    """Looks at what one session collects, as its command line picks it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def in_module(self, path: Path, session: pytest.Session) -> bool:
        """Guess before a module is imported."""
        return self._takes_all and self._is_collected(path, session) and looks_marked(path)

    def in_item(self, item: pytest.Item) -> bool:
        """True for a ddp test that no ``-k`` or ``-m`` may deselect.

        What these two keep is known when collection ends, which is soon after the test's
        own module was imported.
        """
        option = self._config.option
        if option.keyword or option.markexpr:
            return False
        return item.get_closest_marker("ddp") is not None

    @functools.cached_property
    def _takes_all(self) -> bool:
        """True unless the command line picks tests out of the files."""
        option = self._config.option
        picked = any("::" in argument for argument in self._config.args)
        return not (picked or option.keyword or option.markexpr or option.collectonly)

    def _is_collected(self, path: Path, session: pytest.Session) -> bool:
        # pytest makes modules of all files beside the one that it was asked for, and
        # collects that one.
        if not any(session.isinitpath(around) for around in (path, *path.parents)):
            return False
        return not self._last_failed or path in self._last_failed

    @functools.cached_property
    def _last_failed(self) -> frozenset[Path]:
        """The files that ``--lf`` keeps to; empty for all of them."""
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
