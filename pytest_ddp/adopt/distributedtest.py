"""DeepSpeed's ``DistributedTest`` and its copies in other packages.

They are known by their shape: everybody has a ``common.py`` of their own. A hook of theirs calls an
instance of the class in place of the test, which starts processes; how a rank is one of them is in
:mod:`pytest_ddp.rank.adopted.distributedtest`.
"""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddp.asked.mark import mark_adopted
from pytest_ddp.asked.rules import MAX_WORLD_SIZE
from pytest_ddp.neighbours.launchers import is_launcher


def mark(item: pytest.Item) -> None:
    """Make a ddp test of a method of such a class that asks for one world size.

    One that asks for several in turn, or whose fixtures decide, stays with its own harness.
    """
    cls: Any = getattr(item, "cls", None)
    if not is_launcher(cls) or item.get_closest_marker("ddp"):
        return
    size = _world_size(item, cls)
    if size is None:
        return
    keeps_group = bool(getattr(cls, "reuse_dist_env", False))
    mark_adopted(item, size, keeps_group=keeps_group, timeout=_timeout(cls))


def _world_size(item: Any, cls: Any) -> int | None:
    marks = (mark for mark in getattr(item.obj, "pytestmark", ()) if mark.name == "world_size")
    params = item.callspec.params if hasattr(item, "callspec") else {}
    if (mark := next(marks, None)) is not None:
        asked = mark.args[0] if mark.args else None
    elif "world_size" in item.fixturenames:
        asked = params.get("world_size")
    else:
        asked = cls.world_size
    if isinstance(asked, list | tuple) and len(asked) == 1:
        asked = asked[0]
    return asked if isinstance(asked, int) and 0 < asked <= MAX_WORLD_SIZE else None


def _timeout(cls: Any) -> float | None:
    seconds = getattr(cls, "exec_timeout", None)
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None
