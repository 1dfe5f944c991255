"""The exceptions by which a subject's code fails."""

from __future__ import annotations

import sys
import traceback
from typing import Any


def failures(*others: type[BaseException]) -> tuple[type[BaseException], ...]:
    """What to catch where the subject's code is called: each ``Exception``, and torch's own of
    distributed checkpoints, which is none; and what is given.

    Not what ends a process or a test: ``KeyboardInterrupt``, ``SystemExit``, pytest's outcomes. An
    ``except`` clause calls it when something is raised, and so it needs no import of torch's.
    """
    exception = _checkpoint_exception()
    return (Exception, *([] if exception is None else [exception]), *others)


def cause_of(error: BaseException) -> BaseException:
    """What a rank raised, of torch's exception of a checkpoint; others as they are."""
    exception = _checkpoint_exception()
    if exception is None or not isinstance(error, exception):
        return error
    failed: Any = error
    # Not by the rank: it may be one of a subgroup, or 0 where no other takes part.
    causes: list[BaseException] = [cause for _, (cause, _) in sorted(failed.failures.items())]
    return causes[0] if causes else error


def in_words(error: BaseException) -> str:
    """An exception's type and the first line of its text; and the next, if that one announces it.

    ``load_state_dict`` names the keys in the second line of its text.
    """
    cause = cause_of(error)
    if cause is not error:
        return f"{type(error).__name__}: {in_words(cause)}"
    try:
        text = str(error).strip()
    except Exception:
        text = "(its text cannot be made)"
    first, *others = text.splitlines() or [""]
    said = f"{first} {others[0].strip()}" if first.endswith(":") and others else first
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def release_locals(error: BaseException) -> None:
    """Let go of what the frames of an exception hold, before an exchange while it is handled.

    A group that its rank has ended closes its connections only when nothing holds it, and peers
    wait for that.
    """
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            traceback.clear_frames(each.__traceback__)
            left += [each.__cause__, each.__context__]


def _checkpoint_exception() -> Any:
    module = sys.modules.get("torch.distributed.checkpoint.api")
    return None if module is None else module.CheckpointException
