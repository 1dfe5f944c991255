"""What cannot be judged because the ranks' collectives differ: that is another guarantee's matter.

Where they do, lockstep cuts the subject off. What it had not done by then is nobody's evidence.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddp_conformance.checks.judge_metrics import judge_same_calls
from ddp_conformance.history import Run
from ddp_conformance.recording import judge_each
from ddp_conformance.subjects import Subject
from ddp_conformance.verdict import UndecidedError, listing


def demand_same_calls(subject: Subject, runs: Sequence[Run], guarantee: str) -> None:
    """Raise :class:`UndecidedError` if a run was cut off, with what breaks ``guarantee``."""
    found = judge_each(runs, lambda run: judge_same_calls(run.history))
    if found:
        raise UndecidedError(
            f"{subject.name} could not be judged, for the ranks' collectives differ, which is a "
            f"matter of {guarantee}:\n{listing(found)}",
            found,
        )
