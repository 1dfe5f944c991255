"""The reference's guards, in a file that imports nothing else.

WRT-05 runs a guard in fresh processes, and each of them imports the file that the guard lies in:
with Lightning and PyTorch Geometric beside it, that took half of the whole suite's time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddp_conformance import Case
from ddp_reference.resnet.agreement import rank_and_world_size
from ddp_reference.windows.placement import current_placement


def resnet_guard(case: Case) -> Callable[[Callable[[], Any]], None]:
    def guarded(action: Callable[[], Any]) -> None:
        if rank_and_world_size()[0] == 0:
            action()

    return guarded


def windows_guard(case: Case) -> Callable[[Callable[[], Any]], None]:
    def guarded(action: Callable[[], Any]) -> None:
        if current_placement(None).rank == 0:
            action()

    return guarded
