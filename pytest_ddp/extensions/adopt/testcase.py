"""torch's ``MultiProcessTestCase``, ``MultiProcContinuousTest`` and their subclasses.

Each method becomes a ddp test of the class's world size; how ranks run it is in
:mod:`pytest_ddp.extensions.adopt.ranks.testcases`.
"""

from __future__ import annotations

import sys
import unittest
from collections.abc import Callable
from typing import Any

import pytest

from pytest_ddp.settings.mark import DdpTest
from pytest_ddp.settings.rules import mark_error, shown

_HARNESS = "torch.testing._internal.common_distributed"
_JUDGES = ("_join_processes", "_check_return_codes")
"""Methods that wait for the spawned processes and check how they ended."""


def as_ddp_test(item: pytest.Item) -> DdpTest | None:
    """The ddp test for a method of such a class; None for others.

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
