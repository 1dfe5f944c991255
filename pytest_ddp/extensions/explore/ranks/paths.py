"""Names files relative to the test's folder or to the root folder, alike on every rank."""

from __future__ import annotations

import re
from typing import Any

from pytest_ddp.system.file_events import full_path

_ROOT = "rootdir/"
_OWN = re.compile(r"(^|/)(\.[^/]+|__pycache__|[^/]*\.pyc?)(/|$)")
"""Matches what is no test's file below the root folder: what tools keep there, and code, which
imports read."""
_INSTALLED = ("/site-packages/", "/dist-packages/")
_RANDOM = re.compile(r"(?<![a-z0-9])(tmp[a-z0-9_]{8}|[0-9a-f]{8,}(-[0-9a-f]{4,})*)(?![a-z0-9])")
"""Matches names that ``tempfile`` and ``uuid`` make up."""


class Paths:
    """Names the files of one test."""

    def __init__(self, tmp_path: str, root: str) -> None:
        self._tmp = tmp_path + "/"
        self._root = root.rstrip("/") + "/"

    def name(self, path: Any, folder: int | None = None) -> str:
        """The name of a file; empty for one that is no test's.

        Args:
            path: as functions of ``os`` take it.
            folder: descriptor of the folder to which it is relative; None for the current one.
        """
        full = full_path(path, folder)
        if full is None:
            return ""
        if full.startswith(self._tmp) or full + "/" == self._tmp:
            return full[len(self._tmp) :] or "."
        if not full.startswith(self._root) or any(part in full for part in _INSTALLED):
            return ""
        relative = full[len(self._root) :]
        return "" if _OWN.search(relative) else f"{_ROOT}{relative}"


def point_name(name: str) -> str:
    """The name of a point without parts that are made up anew in each run."""
    return _RANDOM.sub("*", name)


def parent(name: str) -> str:
    """The folder of a file."""
    return name.rpartition("/")[0] or "."
