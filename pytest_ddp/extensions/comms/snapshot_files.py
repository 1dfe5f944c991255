"""Where snapshots are, and the rank that reads and writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

from pytest_ddp.extensions.comms import FOLDER
from pytest_ddp.extensions.comms.snapshot import Ranks, difference, text_of
from pytest_ddp.system.stdlib import os

compared: list[str] = []
"""Names of the files that the running test has compared or written, on the rank that does so."""


def path_of(item: pytest.Item, name: str) -> Path:
    """The file of a test's snapshot, beside the test's own."""
    whole = item.nodeid.partition("::")[2] + (f".{name}" if name else "")
    return item.path.parent / FOLDER / item.path.stem / f"{_file_name(whole)}.txt"


def without_test(items: Iterable[pytest.Item]) -> list[str]:
    """Snapshots of tests that are gone from these items' files.

    Parameters are not looked at: which there are may depend on the machine.
    """
    names: dict[Path, set[str]] = {}
    for item in items:
        test = _file_name(item.nodeid.partition("::")[2].partition("[")[0])
        names.setdefault(path_of(item, "").parent, set()).add(test)
    return [
        os.path.relpath(path)
        for folder, known in names.items()
        for path in sorted(folder.glob("*.txt"))
        if not any(re.match(rf"{re.escape(name)}($|[.-])", path.stem) for name in known)
    ]


def unused(
    items: Iterable[pytest.Item], passed: AbstractSet[str], used: AbstractSet[Path]
) -> list[str]:
    """Snapshots of tests that have passed and have not compared anything with them.

    Args:
        items: those of the run.
        passed: node ids of those that have passed.
        used: the files that were compared or written.
    """
    # A name and a parameter may have a point: the longest test is the owner.
    owners = sorted(items, key=lambda item: -len(path_of(item, "").stem))
    found: list[str] = []
    for folder in {path_of(item, "").parent for item in owners}:
        for path in sorted({*folder.glob("*.txt")} - used):
            own = (item for item in owners if _is_of(path, path_of(item, "")))
            owner = next(own, None)
            if owner is not None and owner.nodeid in passed:
                found.append(os.path.relpath(path))
    return found


def _is_of(path: Path, first: Path) -> bool:
    """Whether it is a test's snapshot without a name, or one with a name."""
    same = path.parent == first.parent
    return same and (path.stem == first.stem or path.stem.startswith(f"{first.stem}."))


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.=-]+", "-", text).strip("-")


def compare(item: pytest.Item, name: str, torch: str, ranks: Ranks, *, update: bool) -> str | None:
    """Compare with the file, or write it; returns the text of a failure.

    For one rank alone, so that there is one writer.
    """
    path = path_of(item, name)
    compared.append(path.name)
    now = text_of(path.stem, torch, ranks)
    before = path.read_text(encoding="utf-8") if path.exists() else None
    if update:
        if before is None or difference(before, now, ranks, ""):
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_suffix(".new")
            new.write_text(now, encoding="utf-8")
            os.replace(new, path)  # a test that is killed leaves the old one
        return None
    shown = os.path.relpath(path, item.config.rootpath)
    if before is None:
        return f"there is no {shown}; --ddp-update-comms writes it:\n{now}"
    return difference(before, now, ranks, shown)
