"""Judges of training loops: pure functions from what ranks saw to violations."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, zip_longest

from ddp_conformance.determinism.history import (
    DeviceMemory,
    HeldModule,
    LoopLoss,
    LoopParameters,
    LoopStep,
    RebuildsBuckets,
    Sketch,
)
from ddp_conformance.framework.allowance import Allowance, Terms
from ddp_conformance.framework.history import History
from ddp_conformance.framework.shares import equal_draws, uneven_passes
from ddp_conformance.framework.verdict import Violation, ranks_in_words

NOTHING = Terms()

REORDERED = 1e-5
"""Relative difference, of the norm, where a sum over ranks was taken in another order."""


def judge_same_run(
    history: History, other: str, tolerance: float = 0.0, *, like: str = "whole"
) -> tuple[Violation, ...]:
    """Run ``other`` has the steps of run ``like``, in order, and ends with its parameters.

    Parameters are compared to the last bit, unless a tolerance is given.
    """
    return (
        *_same_steps(history, other, like),
        *same_parameters(history, other, "end", like, tolerance),
    )


def judge_resumption(history: History, other: str) -> tuple[Violation, ...]:
    """Run ``other``, in two parts, is the whole run, to the last bit wherever that can be.

    A resumed DDP makes its first step with the buckets of a first step, the whole run that same
    step with rebuilt ones, where each gradient has another place. gloo adds up a bucket in as
    many parts as there are ranks, each beginning with another rank, so that the place decides
    the order of the sum. Two ranks have only one: a + b is b + a.
    """
    rebuilt = any(isinstance(record, RebuildsBuckets) for record in history)
    reordered = rebuilt and len(steps_of(history, "whole")) > 2
    return judge_same_run(history, other, REORDERED if reordered else 0.0)


def judge_random_states(history: History, other: str) -> tuple[Violation, ...]:
    """Each random generator of each rank gives the same numbers in both runs."""
    whole, again = steps_of(history, "whole"), steps_of(history, other)
    return (
        *(
            Violation(f"{other}: rank {rank}, step {place}: {text}", epoch)
            for rank in whole
            for place, epoch, text in _first_draws(whole[rank], again.get(rank, []))
        ),
        *([] if whole else [Violation("the loop made no step")]),
    )


def judge_same_losses(history: History, tolerance: float) -> tuple[Violation, ...]:
    """All ranks report, for each epoch, the loss that one process alone reports."""
    losses = [record for record in history if isinstance(record, LoopLoss)]
    alone = {r.epoch: r.loss for r in losses if r.run == "alone"}
    whole = {(r.epoch, r.rank): r.loss for r in losses if r.run == "whole"}
    if not alone or not whole:
        return (Violation("no epoch's loss was reported"),)
    return tuple(
        Violation(f"rank {rank} reports {_loss(got)}, one process alone {_loss(right)}", epoch)
        for epoch in sorted(alone.keys() | {epoch for epoch, _ in whole})
        for rank in ranks_of(history)
        for got, right in [(whole.get((epoch, rank)), alone.get(epoch))]
        if not _near(got, right, tolerance)
    )


def _near(got: float | None, right: float | None, tolerance: float) -> bool:
    if got is None or right is None:
        return got is right
    return math.isclose(got, right, rel_tol=tolerance) or (math.isnan(got) and math.isnan(right))


def _loss(loss: float | None) -> str:
    return "nothing" if loss is None else f"{loss:.6g}"


def judge_seeds(history: History, size: int, terms: Terms = NOTHING) -> tuple[Violation, ...]:
    """Parameters and order come from one seed for all ranks, random draws from another each."""
    return (
        *_unequal_starts(history),
        *_repeated_samples(history, size, terms),
        *_equal_draws(history),
    )


def judge_held_modules(history: History) -> tuple[Violation, ...]:
    """No module of the data set is trained or moved."""
    return tuple(
        Violation(f"{held.path} on rank {held.rank} {_fault(held)}")
        for held in history
        if isinstance(held, HeldModule) and (held.trained or held.changed or held.altered)
    )


def judge_own_device(history: History) -> tuple[Violation, ...]:
    """Each rank allocates on its own GPU alone; and on that one it does."""
    memory = [record for record in history if isinstance(record, DeviceMemory)]
    idle = set(ranks_of(history)) - {m.rank for m in memory if m.allocated}
    return (
        *(
            Violation(f"rank {m.rank} of GPU {m.own} allocated {m.allocated} bytes on {m.device}")
            for m in memory
            if m.device != m.own and m.allocated
        ),
        *(Violation(f"rank {rank} used no GPU") for rank in sorted(idle)),
        *([] if memory or idle else [Violation("no rank used a GPU")]),
    )


def ranks_of(history: History) -> list[int]:
    """All ranks with a record, also those without a step."""
    return sorted({record.rank for record in history})


def steps_of(history: History, run: str) -> dict[int, list[LoopStep]]:
    steps: defaultdict[int, list[LoopStep]] = defaultdict(list)
    for record in history:
        if isinstance(record, LoopStep) and record.run == run:
            steps[record.rank].append(record)
    return dict(sorted(steps.items()))


def _same_steps(history: History, other: str, like: str) -> Iterator[Violation]:
    whole, again = steps_of(history, like), steps_of(history, other)
    if not whole:
        yield Violation("the loop made no step")
    for rank in sorted(whole.keys() | again.keys()):
        pairs = zip_longest(whole.get(rank, []), again.get(rank, []))
        for place, (wanted, got) in enumerate(pairs):
            if _place(wanted) != _place(got):
                yield Violation(
                    f"{other}: rank {rank}, step {place}: {_place(got)}, not {_place(wanted)}"
                )
                break


def _place(step: LoopStep | None) -> str:
    return "nothing" if step is None else f"samples {list(step.ids)} in epoch {step.epoch}"


def same_parameters(
    history: History, other: str, when: str, like: str, tolerance: float = 0.0
) -> Iterator[Violation]:
    """Whether, at its begin, or its end, run ``other`` has the parameters of run ``like`` on each
    rank.
    """
    verb, adjective = {"begin": ("begins", "initial"), "end": ("ends", "final")}[when]
    found = {
        (r.run, r.rank): {sketch.name: sketch for sketch in r.sketches}
        for r in history
        if isinstance(r, LoopParameters) and r.when == when
    }
    for rank in ranks_of(history):
        wanted, got = found.get((like, rank)), found.get((other, rank))
        if wanted is None or got is None:
            yield Violation(f"{other}: rank {rank} reports no {adjective} parameters")
            continue
        names = [*wanted, *(name for name in got if name not in wanted)]
        different = [n for n in names if not _same(wanted.get(n), got.get(n), tolerance)]
        if different:
            yield Violation(f"{other}: rank {rank} {verb} with another {different[0]}")


def _same(one: Sketch | None, other: Sketch | None, tolerance: float) -> bool:
    if one is None or other is None or one.digest == other.digest or tolerance == 0.0:
        return one is not None and other is not None and one.digest == other.digest
    limit = tolerance * max(one.norm, other.norm)
    if not math.isfinite(limit):
        return False  # all numbers lie within an infinite limit
    return abs(one.norm - other.norm) <= limit and abs(one.projection - other.projection) <= limit


def _first_draws(whole: list[LoopStep], again: list[LoopStep]) -> Iterator[tuple[int, int, str]]:
    """Yield the first step at which each generator gave another number, with the step's epoch.

    Steps beyond those of the whole run are not compared.
    """
    seen: set[str] = set()
    for place, wanted in enumerate(whole):
        if place >= len(again):
            yield place, wanted.epoch, "no such step is made"
            return
        draws = dict(again[place].draws)
        for name, value in wanted.draws:
            if name not in seen and draws.get(name) != value:
                seen.add(name)
                yield place, again[place].epoch, f"{name} goes on from another state"


def _unequal_starts(history: History) -> Iterator[Violation]:
    """Yield ranks that begin with other parameters, by digests: a NaN as norm is not equal to
    itself."""
    starts = {
        record.rank: tuple((sketch.name, sketch.digest) for sketch in record.sketches)
        for record in history
        if isinstance(record, LoopParameters) and (record.run, record.when) == ("whole", "begin")
    }
    first = min(starts, default=0)
    for rank in sorted(set(ranks_of(history)) - starts.keys()):
        yield Violation(f"rank {rank} reports no initial parameters")
    for rank, start in sorted(starts.items()):
        if start != starts[first]:
            yield Violation(f"rank {rank} begins with other parameters than rank {first}")


def _repeated_samples(history: History, size: int, terms: Terms) -> Iterator[Violation]:
    steps = steps_of(history, "whole")
    if not steps:
        yield Violation("the loop made no step")
    epochs = sorted({step.epoch for own in steps.values() for step in own})
    if "endless" in terms.traits and "replacement" not in terms.traits:
        batches = {rank: [step.ids for step in own] for rank, own in steps.items()}
        text = uneven_passes(batches, size, terms.copies, loosely(size, terms, len(steps)))
        yield from [Violation(f"{text}: no common order")] if text else []
        return
    for epoch in epochs:
        shares = {
            rank: [index for step in own if step.epoch == epoch for index in step.ids]
            for rank, own in steps.items()
        }
        for text in _unshared(shares, size, terms, len(ranks_of(history))):
            yield Violation(f"{text}: no common order", epoch)


def loosely(size: int, terms: Terms, world_size: int) -> Allowance:
    """The allowance for padding that may be undeclared: fewer samples than ranks are repeated, or
    left out instead."""
    groups = terms.members(size)
    surplus = sum(max(world_size - 1, terms.allowed(len(g), world_size).surplus) for g in groups)
    missing = terms.allowed_in_all(size, world_size).missing
    return Allowance(surplus, max(missing, len(groups) * (world_size - 1)))


def _unshared(
    shares: Mapping[int, Sequence[int]], size: int, terms: Terms, world_size: int
) -> Iterator[str]:
    if "replacement" in terms.traits:
        for one, other in equal_draws(shares):
            yield f"ranks {one} and {other} draw the same {len(shares[one])} samples"
        return
    owners: defaultdict[int, list[int]] = defaultdict(list)
    for rank, share in sorted(shares.items()):
        for index in share:
            owners[index].append(rank)
    copies = terms.copies
    repeated = {i: ranks for i, ranks in sorted(owners.items()) if len(ranks) > copies}
    surplus = sum(len(ranks) - copies for ranks in repeated.values())
    if surplus > loosely(size, terms, world_size).surplus:
        index, ranks = next(iter(repeated.items()))
        yield f"{surplus} samples are repeated, index {index} by {ranks_in_words(ranks)}"


def _equal_draws(history: History) -> Iterator[Violation]:
    firsts = [own[0] for own in steps_of(history, "whole").values()]
    for one, other in combinations(firsts, 2):
        for name, value in one.draws:
            if dict(other.draws).get(name) == value:
                yield Violation(f"ranks {one.rank} and {other.rank} draw the same from {name}")


def _fault(held: HeldModule) -> str:
    if held.trained:
        return "is part of the model that is trained"
    return "was changed or moved" if held.changed else held.altered
