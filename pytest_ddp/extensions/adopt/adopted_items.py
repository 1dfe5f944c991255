"""Makes ddp tests of tests without a mark, according to the options.

torch's ``MultiProcessTestCase``, ``MultiProcContinuousTest`` and their subclasses: each method
becomes a ddp test of the class's world size; :mod:`pytest_ddp.extensions.adopt.ranks.testcases`
runs it in ranks.

DeepSpeed's ``DistributedTest`` and its copies in other packages are recognised by their
attributes, as each package has its own copy of ``common.py``. Their conftest hook calls an instance
of the class instead of the test; the call starts processes. In
:mod:`pytest_ddp.extensions.adopt.ranks.distributedtest_ranks` a rank replaces such a process.

With ``--ddp-everywhere`` every other test runs on ranks as well.
"""

from __future__ import annotations

import sys
import unittest
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pytest_ddp.extensions.adopt.options import Adopt, AdoptOptions
from pytest_ddp.extensions.adopt.ranks.distributedtest_ranks import asked_sizes, is_launcher
from pytest_ddp.settings.mark import WORLD_SIZE_PARAM, DdpTest
from pytest_ddp.settings.rules import MAX_LOCAL_WORLD_SIZE, mark_error, shown
from pytest_ddp.system.stdlib import inspect


class AdoptedItems:
    """A pytest plugin of the pytest process and of ranks."""

    def __init__(self, options: AdoptOptions) -> None:
        self._takes_harnesses = Adopt.TESTCASE in options.adopt
        self._everywhere = options.everywhere

    def pytest_ddp_make_test(self, item: pytest.Item) -> DdpTest | None:
        found = None
        if self._takes_harnesses:
            found = _of_test_case(item) or _of_distributed_test(item)
        if found is None and self._everywhere is not None:
            found = _of_every_test(item, self._everywhere)
        return found

    def pytest_ddp_world_sizes(self, metafunc: pytest.Metafunc) -> Sequence[int] | None:
        return _sizes_in_turn(metafunc) if self._takes_harnesses else None


# ------------------------------------------------------------------ torch's test cases

_HARNESS = "torch.testing._internal.common_distributed"
_JUDGES = ("_join_processes", "_check_return_codes")
"""Methods that wait for the spawned processes and check how they ended."""


def _of_test_case(item: pytest.Item) -> DdpTest | None:
    """Make the ddp test of a method of such a class; return None for other items.

    Raises:
        pytest.UsageError: the world size of a class is unknown before its set-up.
    """
    harness: Any = sys.modules.get(_HARNESS)
    cls = getattr(item, "cls", None)
    if harness is None or cls is None:
        return None
    if issubclass(cls, harness.MultiProcessTestCase):
        if any(
            getattr(cls, name) is not getattr(harness.MultiProcessTestCase, name)
            for name in _JUDGES
        ):
            return None  # It checks its own processes, which ranks do not have.
        return DdpTest(_known(item, cls, _of_instance), nodes=1)
    if issubclass(cls, harness.MultiProcContinuousTest):
        # Its processes and their group are shared by all tests of the class.
        return DdpTest(_known(item, cls, _of_class), nodes=1, keeps_group=True)
    return None


def _known(item: pytest.Item, cls: type[Any], size: Callable[[type[Any], str], int]) -> int:
    try:
        return size(cls, item.name)
    except Exception as error:
        raise mark_error(
            item,
            f"--ddp-adopt=testcase: the world size of {cls.__name__} is not known before its "
            f"set-up ({type(error).__name__}: {shown(str(error))}). Make it a property of the "
            f"class, or mark the class with @pytest.mark.ddp(world_size=..., init=False).",
        ) from error


def _of_instance(cls: type[Any], name: str) -> int:
    return int(cls(name).world_size)


def _of_class(cls: type[Any], name: str) -> int:
    device = cls.device_type() if callable(cls.device_type) else cls.device_type
    try:
        return int(cls._get_world_size(device))
    except unittest.SkipTest:
        return 1  # its set-up skips again, in the rank


# ------------------------------------------------------------------ DistributedTest


def _of_distributed_test(item: pytest.Item) -> DdpTest | None:
    """Make the ddp test of a method of such a class; return None for other items.

    If fixtures decide the number of processes, the test stays with its own harness.
    """
    cls: Any = getattr(item, "cls", None)
    sizes = _world_sizes(item, cls) if is_launcher(cls) else None
    if sizes is None:
        return None
    keeps_group = bool(getattr(cls, "reuse_dist_env", False))
    return DdpTest(sizes, nodes=1, keeps_group=keeps_group, timeout=_timeout(cls))


def _sizes_in_turn(metafunc: pytest.Metafunc) -> tuple[int, ...]:
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


# ------------------------------------------------------------------ suites for torchrun


def _of_every_test(item: pytest.Item, world_size: int) -> DdpTest | None:
    """Make a ddp test of an item that ranks can run; return None for other items."""
    if not isinstance(item, pytest.Function) or inspect.isasyncgenfunction(item.function):
        return None
    return DdpTest(world_size, keeps_group=True, own_tmp_path=True)
