"""Judges of the model guarantees: pure functions from what ranks saw to violations."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TypeAlias

from ddp_conformance.framework.history import History
from ddp_conformance.framework.verdict import Violation, ranks_in_words
from ddp_conformance.launched.endings import broke_off, ends_of, ranks_that_came_through
from ddp_conformance.model.history import (
    Decided,
    Gradients,
    OneProcessEnds,
    Overflowed,
    Overwrote,
    Pass,
    State,
    UnlikeOneProcess,
    Wrapped,
)
from ddp_conformance.model.owners import Owners
from ddp_conformance.model.rounding_limits import RoundingLimits

WRAPPING = "after wrapping"
"""The moment of a :class:`~ddp_conformance.model.history.State` before the first step."""

NO_PASS = "no backward pass was seen"


def after_step(number: int) -> str:
    """The moment of a :class:`~ddp_conformance.model.history.State` after a step, from 1."""
    return f"after step {number}"


def judge_equal_after_steps(history: History) -> tuple[Violation, ...]:
    """Parameters are the same on all ranks after every step."""
    by_moment = _moments(history)
    moments = {m: states for m, states in by_moment.items() if m != WRAPPING}
    owners = Owners(history)
    return tuple(
        Violation(text)
        for moment, states in (moments or {"after a step": []}).items()
        for text in (
            *_unknown(moment, states, history),
            *_different(moment, states, owners, buffers=False),
        )
    )


def judge_equal_after_wrapping(history: History) -> tuple[Violation, ...]:
    """Parameters and buffers are the same on all ranks before the first step."""
    states = _moments(history).get(WRAPPING, [])
    different = _different(WRAPPING, states, Owners(history), buffers=True)
    return tuple(map(Violation, (*_unknown(WRAPPING, states, history), *different)))


def _moments(history: History) -> dict[str, list[State]]:
    moments: defaultdict[str, list[State]] = defaultdict(list)
    for state in history:
        if isinstance(state, State):
            moments[state.moment].append(state)
    return moments


def _unknown(moment: str, states: list[State], history: History) -> Iterator[str]:
    """Yield in words the ranks that came to their end without a record of this moment."""
    there = {state.rank for state in states}
    silent = [rank for rank in ranks_that_came_through(history) if rank not in there]
    if silent:
        yield f"{moment} nothing is known of {ranks_in_words(silent)}"


def _different(moment: str, states: list[State], owners: Owners, *, buffers: bool) -> Iterator[str]:
    """The first that differs, and how many more."""
    tensors = [
        (state.rank, dict((*state.parameters, *(state.buffers if buffers else ()))))
        for state in states
    ]
    sides: dict[str, defaultdict[str | None, list[int]]] = {}
    for name in dict.fromkeys(name for _, contents in tensors for name in contents):
        by_content = sides.setdefault(owners.one_name(name), defaultdict(list))
        for rank, contents in tensors:
            if name in contents or owners.have(rank, name):
                by_content[contents.get(name)].append(rank)
    different = {name: by for name, by in sides.items() if len(by) > 1}
    if different:
        name, by_content = next(iter(different.items()))
        words = " and ".join(map(ranks_in_words, by_content.values()))
        more = f", as are {len(different) - 1} more" if len(different) > 1 else ""
        yield f"{moment} {name} is another on {words}{more}"


# ------------------------------------------------------------------ MOD-02


def judge_gradients(history: History, tolerance: float) -> tuple[Violation, ...]:
    """All ranks step with the gradients of one process that has all samples."""
    first = not_compared_from(history)
    steps = [seen for seen in history if isinstance(seen, Gradients) and seen.step < first]
    by_one = _by_place(g for g in steps if g.alone)
    owners, limits = Owners(history), RoundingLimits(history)
    through = ranks_that_came_through(history)
    found: list[str] = []
    for rank in sorted({g.rank for g in steps if not g.alone}.union(through)):
        made = _by_place(g for g in steps if g.rank == rank and not g.alone)
        own, alone = _as_called(made, by_one)
        owned = _owned_in_steps(own)
        # If a run broke off, the steps that one process would have made are not known.
        known = {*own} & {*alone} if broke_off(history) else {*own}
        demanded = rank in through and not owners.train_nothing(rank)
        for place in sorted(known.union(alone if demanded else ())):
            where = f"step {place[0]}, rank {rank}"
            stepped = owned.get(place[0], frozenset())
            texts = [
                [*_wrong_gradients(where, place, seen, wanted, tolerance, owners, limits, stepped)]
                for seen in own.get(place, [None])
                for wanted in alone.get(place, [None])[:1]
            ]
            # Without an optimizer, either record may be right: gradients may be reduced by hand.
            found += [] if [] in texts else texts[-1]
        if demanded and not own and not alone and overflowed_apart(history) is None:
            found.append(f"rank {rank} made no optimizer step")
    return tuple(map(Violation, found))


def not_compared_from(history: History) -> float:
    """The first step that is not compared with one process."""
    ends = (seen.step for seen in history if isinstance(seen, OneProcessEnds))
    return min((*ends, overflowed_apart(history) or math.inf))


def overflowed_apart(history: History) -> int | None:
    """The first step that gradient scalers skip on all ranks, or in one process, alone.

    Each rank divides its loss by fewer samples than one process does, so that its scaled gradients
    are larger, and may overflow where those of one process do not. The scales differ from then on.
    """
    everyone = {seen.rank for seen in history if isinstance(seen, Decided) and not seen.alone}
    ranks: defaultdict[int, set[int]] = defaultdict(set)
    one: set[int] = set()
    for seen in history:
        if isinstance(seen, Overflowed) and seen.alone:
            one.add(seen.step)
        elif isinstance(seen, Overflowed):
            ranks[seen.step].add(seen.rank)
    return min(
        (
            step
            for step in {*ranks, *one}
            if ranks[step] in (set(), everyone) and bool(ranks[step]) != (step in one)
        ),
        default=None,
    )


def unlike_one_process(history: History) -> UnlikeOneProcess | None:
    """The module, if any, for which one process rightly has other results."""
    return next((seen for seen in history if isinstance(seen, UnlikeOneProcess)), None)


def gradients_unseen(history: History) -> bool:
    """Whether the gradients of a step without an optimizer were gone at its end."""
    taken: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
    for seen in history:
        if isinstance(seen, Gradients) and not seen.alone:
            taken[seen.rank, seen.step].add(seen.taken)
    return any(kinds == {"after backward"} for kinds in taken.values())


ByPlace: TypeAlias = dict[tuple[int, int], list[Gradients]]


def _by_place(steps: Iterable[Gradients]) -> ByPlace:
    """Records by step, and by their order within it: a step may have several optimizers.

    What a step was made with by hand may be seen twice.
    """
    made: Counter[int] = Counter()
    found: dict[tuple[int, int], list[Gradients]] = {}
    for gradients in steps:
        if gradients.taken in ("in the end", "in the step"):
            place = gradients.step, made[gradients.step] - 1
            earlier = found[place] if gradients.taken == "in the end" else []
            found[place] = [*earlier, gradients]
            continue
        found[gradients.step, made[gradients.step]] = [gradients]
        made[gradients.step] += 1
    return found


def _as_called(own: ByPlace, alone: ByPlace) -> tuple[ByPlace, ByPlace]:
    """A rank's records, each at the place at which one process calls the same optimizer; and its.

    Where each parameter's hook calls an optimizer of its own, the order is that of gradients, which
    is another one in FSDP's passes. Then the others have theirs, or not yet.
    """
    own, alone = dict(own), dict(alone)
    for step in {step for step, _ in own}:
        called = [frozenset(own[place][0].owned) for place in sorted(own) if place[0] == step]
        wanted = [frozenset(alone[place][0].owned) for place in sorted(alone) if place[0] == step]
        if called == wanted or Counter(called) != Counter(wanted) or len({*called}) < len(called):
            continue
        made = [[*map(_of_its_own, own[step, place])] for place in range(len(called))]
        for place, names in enumerate(wanted):
            own[step, place] = made[called.index(names)]
            alone[step, place] = [*map(_of_its_own, alone[step, place])]
    return own, alone


def _of_its_own(gradients: Gradients) -> Gradients:
    values = tuple(pair for pair in gradients.values if pair[0] in gradients.owned)
    return replace(gradients, values=values)


def _owned_in_steps(own: ByPlace) -> Mapping[int, AbstractSet[str]]:
    """The parameters of all optimizers that a rank calls, by step."""
    owned: defaultdict[int, set[str]] = defaultdict(set)
    for (step, _), made in own.items():
        owned[step].update(*(gradients.owned for gradients in made))
    return owned


def _wrong_gradients(
    where: str,
    place: tuple[int, int],
    found: Gradients | None,
    alone: Gradients | None,
    tolerance: float,
    owners: Owners,
    limits: RoundingLimits,
    stepped: AbstractSet[str],
) -> Iterator[str]:
    """Those of the step's other optimizers are judged where these are called.

    Here they may not be reduced, as a discriminator's in the step of a generator, or be changed
    already, as by an optimizer that computes in place.

    Args:
        stepped: the parameters of all optimizers that the rank calls in this step.
    """
    if alone is None:
        yield f"{where}: one process with all samples makes no such step"
        return
    if found is None:
        yield f"{where}: no such step is made, one process with all samples makes it"
        return
    expected = dict(alone.values)
    known = {owners.one_name(name) for name, _ in found.values}
    lacking = [
        (name, ())
        for name in expected
        if name not in known and not owners.train_elsewhere(found.rank, name)
    ]
    floor = tolerance / 10 * _largest(value for values in expected.values() for value in values)
    others = stepped - {*found.owned} if found.owned else frozenset()
    for name, values in (*found.values, *lacking):
        if name in others:
            continue
        one_name = owners.one_name(name)
        wanted = expected.get(one_name, ())
        if len(values) != len(wanted):
            yield f"{where}: {name} has {len(values)} gradient values, one process {len(wanted)}"
            return
        # A bias before a normalisation, or of attention's keys, has a gradient of zero but for
        # rounding errors of the size of the others'.
        least = max(floor, limits.of_gradient(*place, one_name))
        if off := farthest_off(values, wanted, tolerance, least):
            value, right = off
            yield f"{where}: the gradient of {name} has {value:.6g}, of one process {right:.6g}"
            return


def farthest_off(
    values: Sequence[float], wanted: Sequence[float], tolerance: float, floor: float = 0.0
) -> tuple[float, float] | None:
    """The value that is farthest from what is wanted, and that; None if all are near enough.

    Args:
        values: the values to judge.
        wanted: the right values, as many.
        tolerance: relative to the largest of ``wanted``.
        floor: an absolute difference that is always allowed.
    """
    limit = max(tolerance * _largest(wanted), floor) + 1e-7
    off = [pair for pair in zip(values, wanted, strict=True) if _distance(*pair) > limit]
    return max(off, key=lambda pair: _distance(*pair), default=None)


def _largest(values: Iterable[float]) -> float:
    return max((abs(value) for value in values if math.isfinite(value)), default=0.0)


def _distance(value: float, right: float) -> float:
    """0 for what is equal, also where it is infinite or not a number; never itself a NaN."""
    if value == right or (math.isnan(value) and math.isnan(right)):
        return 0.0
    distance = abs(value - right)
    return math.inf if math.isnan(distance) else distance


# ------------------------------------------------------------------ MOD-05, MOD-06, MOD-07


def judge_use(history: History, traits: AbstractSet[str]) -> tuple[Violation, ...]:
    """Unused parameters are declared, and a static graph stays the same."""
    passes = _of_whole_steps(history)
    return (
        *_without(history, Wrapped, "nothing is known of its model"),
        *_without(history, Pass, NO_PASS),
        *(
            Violation(text)
            for wrapped in history
            if isinstance(wrapped, Wrapped)
            for text in _wrong_use(wrapped, _used(passes, wrapped.rank), traits)
        ),
    )


def _without(history: History, kind: type[Wrapped | Pass], words: str) -> Iterator[Violation]:
    """Yield a violation for each rank that came to its end without a record of a kind that each
    must have."""
    there = {seen.rank for seen in history if isinstance(seen, kind)}
    for rank in ranks_that_came_through(history):
        if rank not in there:
            yield Violation(f"rank {rank}: {words}")


def _of_whole_steps(history: History) -> list[Pass]:
    """The passes without those of a step in the middle of which its rank broke off.

    A rank that torch ends for a parameter without a gradient ends in the forward pass of the next
    step: the step in question has returned.
    """
    off = {end.rank for end in ends_of(history)}.difference(ranks_that_came_through(history))
    returned = {(d.rank, d.step) for d in history if isinstance(d, Decided) and not d.alone}
    passes = (seen for seen in history if isinstance(seen, Pass))
    return [seen for seen in passes if seen.rank not in off or (seen.rank, seen.step) in returned]


def _used(passes: Iterable[Pass], rank: int) -> dict[int, set[str]]:
    used: defaultdict[int, set[str]] = defaultdict(set)
    for seen in passes:
        if seen.rank == rank:
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
    """No forward pass changes a parameter; and there was one to look at."""
    return (
        *_without(history, Pass, NO_PASS),
        *(
            Violation(
                f"step {seen.step}, rank {seen.rank}: forward() changed {', '.join(seen.names)}"
            )
            for seen in history
            if isinstance(seen, Overwrote)
        ),
    )


def judge_accumulation(history: History) -> tuple[Violation, ...]:
    """Gradients stay local until the last backward pass of a step, which reduces them.

    Sharded models are not judged: their backward passes gather parameters as well.
    """
    if any(isinstance(seen, Wrapped) and seen.sharded for seen in history):
        return ()
    steps: defaultdict[int, defaultdict[int, list[Pass]]]
    steps = defaultdict(lambda: defaultdict(list))
    for seen in _of_whole_steps(history):
        steps[seen.step][seen.rank].append(seen)
    return (
        *_without(history, Pass, NO_PASS),
        *(
            Violation(text)
            for step, made in sorted(steps.items())
            for text in (*_unreduced(step, made, history), *_equal_too_early(step, made))
        ),
    )


def _unreduced(step: int, made: Mapping[int, list[Pass]], history: History) -> Iterator[str]:
    for rank in sorted({*made, *ranks_that_came_through(history)}):
        for text in _wrong_reductions(made.get(rank, [])):
            yield f"step {step}, rank {rank}: {text}"


def _wrong_reductions(made: list[Pass]) -> Iterator[str]:
    if len(made) < 2:
        yield f"{len(made)} backward passes, so that nothing is accumulated"
        return
    *before, last = made
    # A model that communicates in its forward pass, as SyncBatchNorm does, also does in each
    # backward pass: the last one has more collectives than that.
    early = [seen.place + 1 for seen in before if seen.collectives >= max(last.collectives, 1)]
    if early:
        yield f"gradients are reduced in backward pass {early[0]} of {len(made)} already"
    if not last.collectives:
        yield "gradients are not reduced in the last backward pass"


def _equal_too_early(step: int, made: Mapping[int, list[Pass]]) -> Iterator[str]:
    """A violation if ranks agree before the last pass; their numbers of passes may differ."""
    fewest = min(map(len, made.values()))
    for place in range(fewest - 1):
        digests = {passes[place].digest for passes in made.values()}
        if len(made) > 1 and len(digests) == 1:
            yield f"step {step}: all ranks have the same gradients after backward pass {place + 1}"
