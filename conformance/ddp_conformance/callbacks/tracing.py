"""Which collectives a rank makes in each process group, and which code called them.

``TORCH_DISTRIBUTED_DEBUG=DETAIL`` compares operation, shape and dtype; it does not see that
a metric is summed with another rank's gradient of the same shape. The functions that called
the two collectives differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from ddp_conformance.callbacks.history import Traced
from ddp_conformance.framework.places import call_site, callers, is_training_library
from ddp_conformance.lockstep.lockstep import NEW_GROUP, before_each

ROOTED = frozenset(
    {"broadcast", "reduce", "gather", "scatter", "barrier", "monitored_barrier", NEW_GROUP}
)
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
    with before_each(trace.add):
        yield


def subject_functions() -> Iterator[str]:
    """The functions of the callers that are the subject's, innermost first: no training library."""
    for frame in callers():
        if not is_training_library(frame.f_code.co_filename):
            yield frame.f_code.co_qualname
