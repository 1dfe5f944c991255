"""Judges of the model guarantees: pure functions from what ranks saw to violations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from ddp_conformance.history import History
from ddp_conformance.model_history import Gradients, Overwrote, Pass, State, Wrapped
from ddp_conformance.verdict import Violation, ranks_in_words

WRAPPING = "after wrapping"


def judge_equal_after_steps(history: History) -> tuple[Violation, ...]:
    """Parameters are the same on all ranks after every step."""
    moments = _moments(history)
    return tuple(
        Violation(text)
        for moment, states in moments.items()
        if moment != WRAPPING
        for text in _different(moment, states, buffers=False)
    )


def judge_equal_after_wrapping(history: History) -> tuple[Violation, ...]:
    """Parameters and buffers are the same on all ranks before the first step."""
    states = _moments(history).get(WRAPPING, [])
    return tuple(Violation(text) for text in _different(WRAPPING, states, buffers=True))


def _moments(history: History) -> dict[str, list[State]]:
    moments: defaultdict[str, list[State]] = defaultdict(list)
    for state in history:
        if isinstance(state, State):
            moments[state.moment].append(state)
    return moments


def _different(moment: str, states: list[State], *, buffers: bool) -> Iterator[str]:
    """The first that differs, and how many more."""
    contents: defaultdict[str, defaultdict[str, list[int]]]
    contents = defaultdict(lambda: defaultdict(list))
    for state in states:
        for name, content in (*state.parameters, *(state.buffers if buffers else ())):
            contents[name][content].append(state.rank)
    different = {name: by for name, by in contents.items() if len(by) > 1}
    if different:
        name, owners = next(iter(different.items()))
        sides = " and ".join(ranks_in_words(ranks) for ranks in owners.values())
        more = f", as are {len(different) - 1} more" if len(different) > 1 else ""
        yield f"{moment} {name} is another on {sides}{more}"


# ------------------------------------------------------------------ MOD-02


def judge_gradients(history: History, tolerance: float) -> tuple[Violation, ...]:
    """All ranks step with the gradients of one process that has all samples."""
    alone = {g.step: g for g in history if isinstance(g, Gradients) and g.alone}
    return tuple(
        Violation(text)
        for gradients in history
        if isinstance(gradients, Gradients) and not gradients.alone
        for text in _wrong_gradients(gradients, alone.get(gradients.step), tolerance)
    )


def _wrong_gradients(found: Gradients, alone: Gradients | None, tolerance: float) -> Iterator[str]:
    where = f"step {found.step}, rank {found.rank}"
    if alone is None:
        yield f"{where}: one process with all samples makes no such step"
        return
    expected = dict(alone.values)
    for name, values in found.values:
        wanted = expected.get(name, ())
        if len(values) != len(wanted):
            yield f"{where}: {name} has {len(values)} gradient values, one process {len(wanted)}"
            return
        largest = max(map(abs, wanted), default=0.0)
        pairs = zip(values, wanted, strict=True)
        off, value, right = max(((abs(a - b), a, b) for a, b in pairs), default=(0.0, 0.0, 0.0))
        if not off <= tolerance * largest + 1e-7:
            yield f"{where}: the gradient of {name} has {value:.6g}, of one process {right:.6g}"
            return


# ------------------------------------------------------------------ MOD-05, MOD-06, MOD-07


def judge_use(history: History, traits: AbstractSet[str]) -> tuple[Violation, ...]:
    """Unused parameters are declared, and a static graph stays the same."""
    return tuple(
        Violation(text)
        for wrapped in history
        if isinstance(wrapped, Wrapped)
        for text in _wrong_use(wrapped, _used(history, wrapped.rank), traits)
    )


def _used(history: History, rank: int) -> dict[int, set[str]]:
    used: defaultdict[int, set[str]] = defaultdict(set)
    for seen in history:
        if isinstance(seen, Pass) and seen.rank == rank:
            used[seen.step].update(seen.used)
    return used


def _wrong_use(
    wrapped: Wrapped, used: dict[int, set[str]], traits: AbstractSet[str]
) -> Iterator[str]:
    steps = sorted(used)
    for step in steps:
        unused = [name for name in wrapped.names if name not in used[step]]
        if unused and "unused_parameters" not in traits:
            yield (
                f"step {step}, rank {wrapped.rank}: {unused[0]} gets no gradient; declare it by "
                "the trait 'unused_parameters', and to DDP by find_unused_parameters"
            )
            break
    for step in steps[1:] if wrapped.static else ():
        changed = used[step] ^ used[steps[0]]
        if changed:
            yield (
                f"rank {wrapped.rank}: the graph is declared static, but {min(changed)} is used "
                f"in only one of the steps {steps[0]} and {step}"
            )
            break


def judge_no_writes(history: History) -> tuple[Violation, ...]:
    """No forward pass changes a parameter."""
    return tuple(
        Violation(f"step {seen.step}, rank {seen.rank}: forward() changed {', '.join(seen.names)}")
        for seen in history
        if isinstance(seen, Overwrote)
    )


def judge_accumulation(history: History) -> tuple[Violation, ...]:
    """Gradients stay local until the last backward pass of a step, which reduces them.

    Not to be told of sharded models: their backward passes gather parameters as well.
    """
    if any(isinstance(seen, Wrapped) and seen.sharded for seen in history):
        return ()
    passes: defaultdict[tuple[int, int], list[Pass]] = defaultdict(list)
    for seen in history:
        if isinstance(seen, Pass):
            passes[seen.step, seen.rank].append(seen)
    return (
        *(
            Violation(f"step {step}, rank {rank}: {text}")
            for (step, rank), made in sorted(passes.items())
            for text in _wrong_reductions(made)
        ),
        *(Violation(text) for text in _equal_too_early(history)),
    )


def _wrong_reductions(made: list[Pass]) -> Iterator[str]:
    if len(made) < 2:
        yield f"{len(made)} backward passes, so that nothing is accumulated"
        return
    early = [seen.place + 1 for seen in made[:-1] if seen.collectives]
    if early:
        yield f"gradients are reduced in backward pass {early[0]} of {len(made)} already"
    if not made[-1].collectives:
        yield "gradients are not reduced in the last backward pass"


def _equal_too_early(history: History) -> Iterator[str]:
    seen = [p for p in history if isinstance(p, Pass)]
    last = {(p.step, p.rank): p.place for p in seen}
    digests: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
    ranks = {p.rank for p in seen}
    for one in seen:
        if one.place < last[one.step, one.rank]:
            digests[one.step, one.place].add(one.digest)
    for (step, place), found in sorted(digests.items()):
        if len(ranks) > 1 and len(found) == 1:
            yield f"step {step}: all ranks have the same gradients after backward pass {place + 1}"
