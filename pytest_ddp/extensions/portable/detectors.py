"""The detectors of a test."""

from __future__ import annotations

from pytest_ddp.extensions.portable.buffer_log import TouchedBuffers
from pytest_ddp.extensions.portable.difference_log import (
    Differences,
    FirstOperations,
    MessageLog,
)
from pytest_ddp.extensions.portable.events import Detector
from pytest_ddp.extensions.portable.handles import LostHandles
from pytest_ddp.extensions.portable.order_log import OrderLog
from pytest_ddp.extensions.portable.reliance_log import WaitLog


def detectors(*, default_group_was_used: bool) -> list[Detector]:
    """One of each kind; their judges are in :mod:`pytest_ddp.extensions.portable.judges`.

    Args:
        default_group_was_used: whether a fixture that is wider than the test may have used it.
    """
    return [
        OrderLog(),
        LostHandles(),
        TouchedBuffers(),
        Differences(),
        MessageLog(),
        FirstOperations(default_group_was_used=default_group_was_used),
        WaitLog(),
    ]
