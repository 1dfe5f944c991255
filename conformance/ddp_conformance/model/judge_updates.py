"""Judge of MOD-11: a pure function from what optimizers made to violations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ddp_conformance.framework.history import History
from ddp_conformance.framework.verdict import Violation
from ddp_conformance.launched.endings import broke_off
from ddp_conformance.model.history import (
    Gradients,
    OneProcessEnds,
    State,
    Updated,
    UpdateUnknown,
)
from ddp_conformance.model.judge import WRAPPING, after_step
from ddp_conformance.model.owners import Owners
from ddp_conformance.model.rounding_limits import RoundingLimits

AT_A_STEP = ("at the step", "in the step")

STATE_NOT_GIVEN = (
    "has an optimizer whose state one process cannot take over: it shards it by itself, as "
    "ZeroRedundancyOptimizer does, or has other parameters than in one process"
)


def judge_updates(history: History) -> tuple[Violation, ...]:
    """Ranks have the parameters that one process's optimizer makes of their own gradients."""
    unknown = {seen.step for seen in history if isinstance(seen, UpdateUnknown)}
    found = [
        Violation(
            f"step {step}: {name} is {value:.9g} after it, and {right:.9g} if one process's "
            "optimizer steps with the same gradients"
        )
        for step, differing in _differing(history).items()
        if step not in unknown
        for name, value, right in differing
    ]
    return (*found, *map(Violation, _between_ranks(history)))


def _differing(history: History) -> dict[int, list[tuple[str, float, float]]]:
    """The parameters that one process makes otherwise, by step: with their value and its."""
    limits = RoundingLimits(history)
    found: defaultdict[int, list[tuple[str, float, float]]] = defaultdict(list)
    for seen in history:
        if isinstance(seen, Updated):
            found[seen.step] += (
                (name, value, right)
                for name, value, right, unit in seen.differing
                if not abs(value - right) <= max(unit, limits.of_update(seen.step, name))
            )
    return found


def update_unknown(history: History) -> str:
    """Why some update could not be repeated in one process; empty if each could.

    What one process has made of the ranks' gradients all the same, is the same update: as of an
    optimizer that computes in its gradients, and gathers the parameters that others have updated.
    """
    differing = _differing(history)
    for seen in history:
        if isinstance(seen, UpdateUnknown) and differing.get(seen.step) != []:
            return seen.why
    if any(isinstance(seen, OneProcessEnds) for seen in history):
        return STATE_NOT_GIVEN
    compared = any(isinstance(seen, Updated) for seen in history)
    return "" if compared or broke_off(history) else "makes no optimizer step"


def _between_ranks(history: History) -> Iterator[str]:
    """Parameters that ranks have made of the same ones, with the same gradients."""
    owners = Owners(history)
    states: defaultdict[str, dict[int, dict[str, str]]] = defaultdict(dict)
    gradients: defaultdict[tuple[int, int], list[dict[str, tuple[float, ...]]]] = defaultdict(list)
    for seen in history:
        if isinstance(seen, State):
            content = {owners.one_name(name): digest for name, digest in seen.parameters}
            states[seen.moment][seen.rank] = content
        elif isinstance(seen, Gradients) and not seen.alone and seen.taken in AT_A_STEP:
            values = {owners.one_name(name): own for name, own in seen.values}
            calls = gradients[seen.rank, seen.step]
            calls[len(calls) - (seen.taken == "in the step") :] = [values]
    for step in sorted({step for _, step in gradients}):
        earlier = states[WRAPPING if step == 1 else after_step(step - 1)]
        later = states[after_step(step)]
        for name in dict.fromkeys(name for content in later.values() for name in content):
            have = [rank for rank in sorted(later) if name in later[rank]]
            first = have[0]
            for rank in have[1:]:
                same_before = earlier.get(rank, {}).get(name) == earlier.get(first, {}).get(name)
                same = [found.get(name) for found in gradients[first, step]] == [
                    found.get(name) for found in gradients[rank, step]
                ]
                differ = later[rank][name] != later[first][name]
                if same_before and same and differ:
                    yield (
                        f"step {step}: ranks {first} and {rank} make another {name} of the same "
                        "one, with the same gradients"
                    )
