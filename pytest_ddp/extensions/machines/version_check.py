"""Compares machines: versions, and the content of test files."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from pytest_ddp.system.stdlib import os

_PACKAGES = ("torch", "pytest", "pytest-ddp")
_MISSING = "none"


def versions() -> dict[str, str]:
    """Return what must be the same on all machines: versions, and the current folder."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = _MISSING
    return found | {"the current folder": os.getcwd()}


def other_version(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """The first difference, in words; empty if there is none.

    Args:
        ours: the versions of node 0.
        theirs: the versions of another node.
    """
    for name, version in ours.items():
        if (other := theirs.get(name, _MISSING)) != version:
            return f"{name} is {other} there and {version} on node 0"
    return ""


def digests(files: Iterable[str]) -> dict[str, str]:
    """A digest of each file's content, empty for one that cannot be read."""
    return {file: _digest(file) for file in files}


def other_file(expected: Mapping[str, str]) -> str:
    """The first file with another content here, in words; empty if there is none."""
    for file, digest in expected.items():
        if not (own := _digest(file)) and digest:
            return f"{file} is missing there"
        if own != digest:
            return f"{file} has another content there than on node 0"
    return ""


def _digest(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""
