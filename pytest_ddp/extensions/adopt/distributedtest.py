"""DeepSpeed's ``DistributedTest`` and its copies in other packages.

They are recognised by their attributes, as each package has its own copy of ``common.py``. Their
conftest hook calls an instance of the class instead of the test; the call starts processes. How a
rank replaces such a process is in :mod:`pytest_ddp.extensions.adopt.ranks.distributedtest_ranks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pytest_ddp.extensions.adopt.ranks.launchers import asked_sizes, is_launcher
from pytest_ddp.settings.mark import WORLD_SIZE_PARAM, DdpTest
from pytest_ddp.settings.rules import MAX_LOCAL_WORLD_SIZE


def as_ddp_test(item: pytest.Item) -> DdpTest | None:
    """The ddp test for a method of such a class; None for others.

    If fixtures decide the number of processes, the test stays with its own harness.
    """
    cls: Any = getattr(item, "cls", None)
    sizes = _world_sizes(item, cls) if is_launcher(cls) else None
    if sizes is None:
        return None
    keeps_group = bool(getattr(cls, "reuse_dist_env", False))
    return DdpTest(sizes, nodes=1, keeps_group=keeps_group, timeout=_timeout(cls))


def sizes_in_turn(metafunc: pytest.Metafunc) -> tuple[int, ...]:
    """The world sizes in the list of such a test; empty if there is one, or no valid list.

    A rank never changes its world size, so each size becomes a separate test.
    """
    cls = metafunc.cls
    if not is_launcher(cls) or metafunc.definition.get_closest_marker("ddp"):
        return ()
    if _is_for_fixture(metafunc.fixturenames, metafunc.function):
        return ()
    sizes = _numbers(asked_sizes(metafunc.function, cls))
    return sizes if sizes is not None and len(sizes) > 1 else ()


def _world_sizes(item: Any, cls: Any) -> int | list[int] | None:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    if WORLD_SIZE_PARAM in params:
        return list(_numbers(asked_sizes(item.function, cls)) or ())
    if _is_for_fixture(item.fixturenames, item.function):
        sizes = _numbers(params.get("world_size"))
    else:
        sizes = _numbers(asked_sizes(item.function, cls))
    return sizes[0] if sizes is not None and len(sizes) == 1 else None


def _is_for_fixture(fixturenames: Sequence[str], function: Any) -> bool:
    marks = getattr(function, "pytestmark", ())
    return "world_size" in fixturenames and not any(mark.name == "world_size" for mark in marks)


def _numbers(world_size: object) -> tuple[int, ...] | None:
    sizes = tuple(world_size) if isinstance(world_size, list | tuple) else (world_size,)
    if len(set(sizes)) < len(sizes):
        return None
    most = MAX_LOCAL_WORLD_SIZE
    numbers = tuple(size for size in sizes if isinstance(size, int) and 0 < size <= most)
    return numbers if numbers == sizes else None


def _timeout(cls: Any) -> float | None:
    seconds = getattr(cls, "exec_timeout", None)
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None
