"""Which collectives a rank makes in each process group, and which code called them.

``TORCH_DISTRIBUTED_DEBUG=DETAIL`` compares operation, shape and dtype, and is blind when
a metric is summed with another rank's gradient of the same shape. The functions that
called them tell the two apart.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any
from unittest import mock

import torch.distributed as dist

from ddp_conformance import lockstep
from ddp_conformance.callback_history import Traced
from ddp_conformance.lockstep import COLLECTIVES, LIBRARIES, description

ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter", "barrier", "monitored_barrier"})
"""Collectives that ranks with different parts may call from different code."""

CHECKS = "/ddp_conformance/checks/"
"""Frames from here outwards are the check's own."""


class Trace:
    """What one rank called."""

    def __init__(self, rank: int) -> None:
        self.calls: list[Traced] = []
        self._rank = rank
        self._numbers: Counter[str] = Counter()

    def add(self, group: dist.ProcessGroup, operation: str, what: str) -> None:
        """Note a collective that is about to be made."""
        frames = list(subject_frames())
        functions = " < ".join(frame.f_code.co_qualname for frame in frames)
        site = f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else ""
        name = group.group_name
        self.calls.append(
            Traced(
                self._rank,
                name,
                tuple(dist.get_process_group_ranks(group)),
                self._numbers[name],
                what,
                "" if operation in ROOTED else functions,
                site,
            )
        )
        self._numbers[name] += 1


@contextmanager
def traced(trace: Trace) -> Iterator[None]:
    """Note the collectives of the block, in all groups; to be entered after ``in_lockstep``."""
    with ExitStack() as patches:
        for name, position in COLLECTIVES.items():
            if hasattr(dist.ProcessGroup, name):
                method = _noting(trace, name, position)
                patches.enter_context(mock.patch.object(dist.ProcessGroup, name, method))
        yield


def _noting(trace: Trace, name: str, position: int | None) -> Callable[..., Any]:
    original = getattr(dist.ProcessGroup, name)

    def noted(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        trace.add(group, name, description(name, position, args))
        return original(group, *args, **kwargs)

    return noted


def subject_frames() -> Iterator[FrameType]:
    """The callers that belong to the subject, innermost first: no library, nothing of the check."""
    frame: FrameType | None = sys._getframe(1)
    ours = (__file__, lockstep.__file__)
    while frame is not None and CHECKS not in frame.f_code.co_filename:
        file = frame.f_code.co_filename
        if file not in ours and not any(part in file for part in LIBRARIES):
            yield frame
        frame = frame.f_back
