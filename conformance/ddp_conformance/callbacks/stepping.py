"""Advance a loop step by step, and note what it decides: in the ranks of a test, or launched."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Any

import numpy as np
import torch

from ddp_conformance.callbacks.history import LoopEnd, StepEnd
from ddp_conformance.framework.case import Case

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
        note(StepEnd(case.rank, step, in_text(decisions)))
    note(LoopEnd(case.rank, steps))


def in_text(decisions: Mapping[str, Any] | None) -> tuple[tuple[str, str], ...]:
    """The decisions as text that shows every bit; raises ``TypeError`` if they are no mapping."""
    if decisions is None:
        return ()
    if not isinstance(decisions, Mapping):
        raise TypeError(
            f"the loop yielded {decisions!r}; yield a mapping such as {{'stop': False}}, or None"
        )
    return tuple((str(name), _text(decisions[name])) for name in sorted(decisions))


def _text(value: Any) -> str:
    return repr(_plain(value))


def _plain(value: Any) -> Any:
    """Equal decisions as equal objects with equal texts, whatever types the ranks chose."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, Mapping):
        return sorted(((_text(name), _plain(part)) for name, part in value.items()), key=repr)
    if isinstance(value, AbstractSet):
        return sorted(map(_text, value))  # their order follows from each process's hash seed
    shown: object = type(value).__repr__
    if shown is object.__repr__:
        raise TypeError(
            f"an object of type {type(value).__name__} cannot be compared between ranks; yield "
            "a number, a string, or several of them"
        )
    return value
