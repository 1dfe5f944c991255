"""Whether ranks make the same collectives; if not, other guarantees cannot be judged.

Lockstep stops such a subject there, so that what it has not done by then is no evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from ddp_conformance.framework.history import Collective, History, Measured, Run, without_ones
from ddp_conformance.framework.recording import judge_each
from ddp_conformance.framework.subjects import Subject
from ddp_conformance.framework.verdict import UndecidedError, Violation, listing


def demand_same_calls(subject: Subject, runs: Sequence[Run], guarantee: str) -> None:
    """Raise :class:`UndecidedError` if a run was stopped, with what breaks ``guarantee``."""
    found = judge_each(runs, lambda run: judge_same_calls(run.history))
    if found:
        raise UndecidedError(
            f"the ranks of {subject.name} make different collectives (see {guarantee}):\n"
            f"{listing(found)}",
            found,
        )


def uncut(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs in which no rank was stopped: what is missing there was really not done."""
    return tuple(run for run in runs if not judge_same_calls(run.history))


def judge_same_calls(history: History) -> tuple[Violation, ...]:
    """All ranks make the same collectives in the same order; returns the first difference."""
    ranks = sorted({r.rank for r in history if isinstance(r, Collective | Measured)})
    by_rank = [[r for r in history if isinstance(r, Collective) and r.rank == k] for k in ranks]
    for number, calls in enumerate(zip_longest(*by_rank)):
        named = {rank: _call(call) for rank, call in zip(ranks, calls, strict=True)}
        if len({without_ones(what) for what, _ in named.values()}) > 1:
            listed = ", ".join(f"rank {rank} {what}{site}" for rank, (what, site) in named.items())
            return (Violation(f"collective {number}: {listed}"),)
    return ()


def _call(call: Collective | None) -> tuple[str, str]:
    """What a rank announced, and the line that called it."""
    if call is None:
        return "nothing", ""
    return call.what, f" ({call.site})" if call.site else ""
