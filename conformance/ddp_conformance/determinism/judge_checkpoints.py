"""Judges of checkpoints: pure functions from what ranks saw of saved and resumed runs."""

from __future__ import annotations

from ddp_conformance.determinism.history import LoopSaved
from ddp_conformance.determinism.judge import judge_same_run
from ddp_conformance.framework.history import History
from ddp_conformance.framework.verdict import Violation


def unsaved(history: History) -> str:
    """Where a run left no checkpoint that it was to save; empty if it left all."""
    for seen in history:
        if isinstance(seen, LoopSaved) and not seen.files:
            return f"left nothing at the path of Leg.{seen.where}"
    return ""


def judge_saving(history: History) -> tuple[Violation, ...]:
    """The run that saves on its way is the one that never saves."""
    return judge_same_run(history, "saving")
