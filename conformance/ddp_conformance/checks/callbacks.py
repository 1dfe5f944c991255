"""CBK-01, CBK-02 and CBK-04: what callbacks call, decide, and do when one of them fails.

The loops run in lockstep: a rank that would wait for ever is seen, and does not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import torch

from ddp_conformance.callback_history import LoopEnd, StepEnd, Tripped
from ddp_conformance.case import Case
from ddp_conformance.checks import judge_callbacks as judge
from ddp_conformance.history import Failed, Record, Run
from ddp_conformance.lockstep import Lockstep, in_lockstep
from ddp_conformance.ranks import Ranks
from ddp_conformance.recording import cases_of, describe, judge_each, record
from ddp_conformance.registry import Check, Guarantee
from ddp_conformance.subjects_callbacks import Callback, ErrorPath
from ddp_conformance.tracing import Trace, traced
from ddp_conformance.verdict import Violation

CBK_01 = Guarantee(
    "CBK-01",
    "In every process group all ranks MUST make the same collectives in the same order, of one "
    "operation, shape and dtype, and called by the same functions.",
)
CBK_02 = Guarantee(
    "CBK-02",
    "What is decided in a step (to stop, the learning rate, to skip, the best checkpoint, the "
    "resolution) MUST be the same on all ranks.",
)
CBK_04 = Guarantee(
    "CBK-04",
    "An error in user code on one rank MUST end all ranks in bounded time, and no rank may "
    "silently skip a batch.",
    tier=2,
)

STEPS = 64
"""Steps after which an endless loop is cut off."""

ERROR_STEP = 1
"""The step in which the check's error is raised: not the first one, and not the last."""


class CheckError(RuntimeError):
    """The error that the check puts into a loop."""


def run_loop(case: Case, loop: Callable[[], Iterable[Any]], records: list[Record]) -> None:
    """Advance the loop to its end, or to the limit, and note its steps."""
    steps = 0
    for step, decisions in enumerate(islice(loop(), STEPS)):
        steps = step + 1
        records.append(StepEnd(case.rank, step, told(decisions)))
    records.append(LoopEnd(case.rank, steps))


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


def observe_loop(subject: Callback, case: Case, ranks: Ranks) -> Iterator[Record]:
    """The steps of this rank and its collectives in all groups."""
    records: list[Record] = []
    trace = Trace(case.rank)
    with in_lockstep(Lockstep(ranks)), traced(trace):
        run_loop(case, lambda: subject.make(case), records)
    yield from (*records, *trace.calls)


def observe_error(subject: ErrorPath, case: Case, ranks: Ranks, failing: int) -> Iterator[Record]:
    """The same with an error on the rank ``failing``."""
    records: list[Record] = []

    def trip(step: int) -> None:
        if case.rank == failing and step == ERROR_STEP:
            records.append(Tripped(case.rank, step))
            raise CheckError(f"put into step {step} of rank {failing} by the check")

    lockstep = Lockstep(ranks)
    try:
        with in_lockstep(lockstep):
            run_loop(case, lambda: subject.make(case, trip), records)
    except Exception as error:
        records.append(Failed(case.rank, describe(error)))
    yield from (*records, *lockstep.calls)


def loop_runs(subject: Callback, ranks: Ranks) -> tuple[Run, ...]:
    """One run, on a number of samples that is no multiple of the world size."""
    cases = cases_of(ranks, (2 * ranks.world_size + 1,))
    return record(subject, ranks, cases, lambda s, case: observe_loop(s, case, ranks))


def find_different_collectives(subject: Callback, ranks: Ranks) -> tuple[Violation, ...]:
    """CBK-01."""
    return judge_each(loop_runs(subject, ranks), lambda run: judge.judge_same_trace(run.history))


def find_different_decisions(subject: Callback, ranks: Ranks) -> tuple[Violation, ...]:
    """CBK-02."""
    return judge_each(loop_runs(subject, ranks), lambda run: judge.judge_decisions(run.history))


def find_swallowed_errors(subject: ErrorPath, ranks: Ranks) -> tuple[Violation, ...]:
    """CBK-04: an error on the first rank, then one on the last."""
    return tuple(
        replace(violation, case=f"error on rank {failing}")
        for failing in sorted({0, ranks.world_size - 1})
        for run in error_runs(subject, ranks, failing)
        for violation in judge.judge_error_path(run.history)
    )


def error_runs(subject: ErrorPath, ranks: Ranks, failing: int) -> tuple[Run, ...]:
    """One run with an error on the rank ``failing``."""
    cases = cases_of(ranks, (2 * ranks.world_size + 1,))
    return record(subject, ranks, cases, lambda s, case: observe_error(s, case, ranks, failing))


CHECKS = (
    Check(CBK_01, (Callback,), find_different_collectives),
    Check(CBK_02, (Callback,), find_different_decisions, needs=frozenset({"decides"})),
    Check(CBK_04, (ErrorPath,), find_swallowed_errors),
)
