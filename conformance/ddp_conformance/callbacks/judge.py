"""Judges of the callback guarantees: pure functions from what ranks saw to violations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from ddp_conformance.callbacks.history import LoopEnd, StepCost, StepEnd, Traced, Tripped
from ddp_conformance.framework.history import Collective, Failed, History, without_ones
from ddp_conformance.framework.verdict import Violation, ranks_in_words
from ddp_conformance.launched.endings import ends_of, words_of
from ddp_conformance.launched.order import Death
from ddp_conformance.lifecycle.judge import judge_ended_in_time
from ddp_conformance.lockstep.lockstep import END
from ddp_conformance.lockstep.same_calls import judge_same_calls

SKIP = "skip"
"""The decision to leave out a step."""

_NUMBERS = {"True": "1", "False": "0"}
"""Truth as a number, for a flag that comes out of a tensor."""


def judge_same_trace(history: History) -> tuple[Violation, ...]:
    """CBK-01: in every group the same collectives, from the same functions, in the same order.

    Only the first difference in the largest group that has one is a violation: later ones, in
    any group, follow from it. Loops without collectives pass; a loop without a step does not.
    """
    if not any(isinstance(seen, Traced | StepEnd) for seen in history):
        return (Violation("no rank made a step"),)
    groups: defaultdict[tuple[tuple[int, ...], str], list[Traced]] = defaultdict(list)
    for call in history:
        if isinstance(call, Traced):
            groups[call.members, call.group].append(call)
    for (members, _), calls in sorted(groups.items(), key=lambda item: -len(item[0][0])):
        found = _first_difference(members, calls)
        if found is not None:
            return (found,)
    return ()


def _first_difference(members: Sequence[int], calls: Sequence[Traced]) -> Violation | None:
    ranks = sorted({*members, *(call.rank for call in calls)})
    by_rank = [[call for call in calls if call.rank == rank] for rank in ranks]
    for number, seen in enumerate(zip_longest(*by_rank)):
        kinds = {(without_ones(call.what), call.functions) if call else None for call in seen}
        if len(kinds) > 1:
            named = "; ".join(f"rank {r} {_call(c)}" for r, c in zip(ranks, seen, strict=True))
            return Violation(f"collective {number} of {ranks_in_words(members)}: {named}")
    return None


def _call(call: Traced | None) -> str:
    if call is None:
        return "makes none"
    through = f" in {call.functions}" if call.functions else ""
    return f"{call.what}{through} ({call.site})" if call.site else f"{call.what}{through}"


def judge_decisions(history: History) -> tuple[Violation, ...]:
    """CBK-02: in every step all ranks decide the same, and at least one decision is reported.

    Steps and decisions that ranks lack because they were cut off, as their collectives differ,
    are no violation.
    """
    ends = [end for end in history if isinstance(end, StepEnd)]
    cut_off = bool(judge_same_calls(history))
    if not any(end.decisions for end in ends):
        return () if cut_off else (Violation("no rank reported a decision"),)
    steps: defaultdict[int, dict[int, dict[str, str]]] = defaultdict(dict)
    for end in ends:
        steps[end.step][end.rank] = dict(end.decisions)
    ranks = sorted({r.rank for r in history if not cut_off or isinstance(r, LoopEnd)})
    return tuple(v for step, made in sorted(steps.items()) for v in _step(step, made, ranks))


def _step(step: int, made: dict[int, dict[str, str]], ranks: Sequence[int]) -> Iterator[Violation]:
    missing = [rank for rank in ranks if rank not in made]
    if missing:
        there = ranks_in_words(sorted(made))
        yield Violation(f"step {step} is made by {there}, and not by {ranks_in_words(missing)}")
    for name in sorted({name for decisions in made.values() for name in decisions}):
        values: defaultdict[str, list[int]] = defaultdict(list)
        for rank, decisions in sorted(made.items()):
            values[decisions.get(name, "nothing")].append(rank)
        if len({_NUMBERS.get(value, value) for value in values}) > 1:
            listed = "; ".join(f"{ranks_in_words(r)}: {value}" for value, r in values.items())
            yield Violation(f"step {step}: {name} differs: {listed}")


def judge_costs(history: History, stated: int) -> tuple[Violation, ...]:
    """CBK-05: no step after the first makes more collectives than are stated.

    One violation for each step, of one of the ranks that make too many in it.
    """
    costs = [seen for seen in history if isinstance(seen, StepCost)]
    if not any(cost.step for cost in costs):
        return (Violation("no rank made a second step"),)
    steps: dict[int, StepCost] = {}
    for cost in costs:
        if cost.step and len(cost.made) > stated:
            steps.setdefault(cost.step, cost)
    return tuple(
        Violation(
            f"step {step}, rank {cost.rank}: {len(cost.made)} collectives, {stated} stated: "
            f"{_listed(cost.made)}"
        )
        for step, cost in sorted(steps.items())
    )


def _listed(made: Sequence[str]) -> str:
    """The last few, as those are beyond the stated number."""
    shown = made[-3:]
    before = len(made) - len(shown)
    return ", ".join((*((f"{before} more",) if before else ()), *shown))


def judge_error_path(history: History) -> tuple[Violation, ...]:
    """CBK-04: the rank with the error raises or all ranks skip the step, and none ends well.

    A rank that waits for one that raised is taken to end, because the process of the other one
    ends and closes the connection. :func:`judge_death` checks whether it really ends.
    """
    tripped = _tripped(history)
    if tripped is None:
        return _NEVER
    if _raised(history, tripped.rank):
        return tuple(_late_finishers(history, tripped))
    return () if _skipped_together(history, tripped.step) else (_went_on(history, tripped),)


def judge_death(history: History, death: Death) -> tuple[Violation, ...]:
    """CBK-04: when a process has died all others end, and none of them with exit code 0.

    Exit code 0 is right if the death was an error and all ranks reported that they skipped the
    step.
    """
    tripped = _tripped(history)
    if tripped is None:
        return _NEVER
    stopped = judge_ended_in_time(history)
    if stopped or (death == "raises" and _skipped_together(history, tripped.step)):
        return stopped
    made_to = {tripped.rank} if death == "exits with 0" else set()
    return tuple(
        Violation(f"{words_of(end)}, although rank {tripped.rank} {death} in step {tripped.step}")
        for end in ends_of(history)
        if end.code == 0 and end.rank not in made_to
    )


def has_tripped(history: History) -> bool:
    """Whether the check's error was raised."""
    return _tripped(history) is not None


_NEVER = (Violation("trip(step) was never called on the rank and in the step of the error"),)


def _tripped(history: History) -> Tripped | None:
    return next((record for record in history if isinstance(record, Tripped)), None)


def _raised(history: History, rank: int) -> bool:
    return any(isinstance(record, Failed) and record.rank == rank for record in history)


def _late_finishers(history: History, tripped: Tripped) -> Iterator[Violation]:
    for end in history:
        if isinstance(end, LoopEnd):
            yield Violation(
                f"rank {end.rank} ends well after {end.steps} steps, although rank "
                f"{tripped.rank} raised in step {tripped.step}"
            )


def _skipped_together(history: History, step: int) -> bool:
    """Every rank made all its steps, and reported that it skipped this one."""
    ranks = {record.rank for record in history}  # also one that failed before its first step
    ended = {record.rank for record in history if isinstance(record, LoopEnd)}
    skipped = {
        end.rank for end in history if isinstance(end, StepEnd) and end.step == step and _skips(end)
    }
    return ranks == ended == skipped


def _skips(end: StepEnd) -> bool:
    decision = dict(end.decisions).get(SKIP, "")
    return _NUMBERS.get(decision, decision) == _NUMBERS["True"]


def _went_on(history: History, tripped: Tripped) -> Violation:
    """What the rank did instead of raising, and what the others waited for."""
    last = {call.rank: call.what for call in history if isinstance(call, Collective)}
    ended = any(isinstance(r, LoopEnd) and r.rank == tripped.rank for r in history)
    words = f"rank {tripped.rank} did not raise after its error in step {tripped.step}"
    words += ", and left the loop" if ended else ""
    waits = [f"rank {rank} in {what}" for rank, what in sorted(last.items()) if what != END]
    return Violation(f"{words}; at last: {', '.join(waits)}" if waits else words)
