"""Advance a loop step by step, and note what it decides: in the ranks of a test, or launched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

import torch

from ddp_conformance.callback_history import LoopEnd, StepEnd
from ddp_conformance.case import Case

STEPS = 64
"""Steps after which an endless loop is cut off."""

ERROR_STEP = 1
"""The step in which the check's error comes: not the first one, and not the last."""


def run_loop(
    case: Case, loop: Callable[[], Iterable[Any]], note: Callable[[StepEnd | LoopEnd], None]
) -> None:
    """Advance the loop to its end, or to the limit, and note its steps."""
    steps = 0
    for step, decisions in enumerate(islice(loop(), STEPS)):
        steps = step + 1
        note(StepEnd(case.rank, step, told(decisions)))
    note(LoopEnd(case.rank, steps))


def told(decisions: Mapping[str, Any] | None) -> tuple[tuple[str, str], ...]:
    """Decisions as text that shows every bit. Raises ``TypeError`` for what is no mapping."""
    if decisions is None:
        return ()
    if not isinstance(decisions, Mapping):
        raise TypeError(
            f"the loop yielded {decisions!r}; yield a mapping such as {{'stop': False}}, or None"
        )
    return tuple((str(name), _text(decisions[name])) for name in sorted(decisions))


def _text(value: Any) -> str:
    return repr(value.tolist() if isinstance(value, torch.Tensor) else value)
