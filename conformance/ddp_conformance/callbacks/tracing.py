"""Which collectives a rank makes in each process group, and which code called them.

``TORCH_DISTRIBUTED_DEBUG=DETAIL`` compares operation, shape and dtype, and is blind when
a metric is summed with another rank's gradient of the same shape. The functions that
called them tell the two apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch.distributed as dist

from ddp_conformance.callbacks.history import Traced
from ddp_conformance.frame.places import call_site, callers, is_training_library
from ddp_conformance.stage.lockstep import COLLECTIVES, description

ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter", "barrier", "monitored_barrier"})
"""Collectives that ranks with different parts may call from different code."""


class Trace:
    """What one rank called."""

    def __init__(self, rank: int) -> None:
        self.calls: list[Traced] = []
        self._rank = rank
        self._numbers: Counter[str] = Counter()

    def add(self, group: dist.ProcessGroup, operation: str, what: str) -> None:
        """Note a collective that is about to be made."""
        functions = " < ".join(subject_functions())
        name = group.group_name
        self.calls.append(
            Traced(
                self._rank,
                name,
                tuple(dist.get_process_group_ranks(group)),
                self._numbers[name],
                what,
                "" if operation in ROOTED else functions,
                call_site(),
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


def subject_functions() -> Iterator[str]:
    """The functions of the callers that are the subject's, innermost first: no training library."""
    for frame in callers():
        if not is_training_library(frame.f_code.co_filename):
            yield frame.f_code.co_qualname
