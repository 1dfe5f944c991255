"""Judges of the lifecycle guarantees: pure functions from what ranks did to violations."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TypeAlias

from ddp_conformance.framework.allowance import Allowance, Terms
from ddp_conformance.framework.history import History
from ddp_conformance.framework.shares import equal_draws, uneven_passes
from ddp_conformance.framework.verdict import Violation, ranks_in_words
from ddp_conformance.launched.endings import (
    came_through,
    ends_of,
    in_order,
    ranks_that_came_through,
    words_of,
)
from ddp_conformance.launched.history import (
    Chose,
    Compiled,
    Ended,
    Fetched,
    Happened,
    Left,
    Made,
    Optimized,
    Saved,
    Stage,
)

TOLERANCE = 1e-4
"""The tolerance between a compiled and an eager run, relative to the sum of absolute values."""

NO_END = "the end of no rank was seen"


def judge_finished(history: History) -> tuple[Violation, ...]:
    """Every rank came to the end of its entry, with exit code 0, and trained; causes first."""
    if not came_through(history):
        ends = [end for end in in_order(history) if not (end.returned and end.code == 0)]
        return tuple(
            Violation(
                f"{words_of(end)}; its last stage was {_last_stage(history, end.rank)}"
                f"{_ended_before(history, end)}"
            )
            for end in ends
        ) or (Violation(NO_END),)
    trained = {step.rank for step in history if isinstance(step, Optimized)}
    return tuple(
        Violation(f"rank {end.rank} made no optimizer step")
        for end in ends_of(history)
        if end.rank not in trained
    )


def _ended_before(history: History, lost: Ended) -> str:
    """The ranks whose orderly end closed the connection that this rank lost."""
    if not _LOST_PEER.search(lost.error):
        return ""
    steps = Counter(step.rank for step in history if isinstance(step, Optimized))
    return "".join(
        f"; rank {rank} had come to its end (optimizer steps: {steps[rank]})"
        for rank in ranks_that_came_through(history)
    )


_LOST_PEER = re.compile(r"Connection (closed|reset) by peer")
"""What gloo and the kernel report for a lost peer."""


def _last_stage(history: History, rank: int) -> str:
    stages = [r for r in history if isinstance(r, Happened) and r.rank == rank]
    if not stages:
        return "its start"
    return f"{stages[-1].stage} at {stages[-1].site}" if stages[-1].site else stages[-1].stage


# ------------------------------------------------------------------ LIF-02


def judge_deliveries(history: History, world_size: int, terms: Terms) -> tuple[Violation, ...]:
    """Judge whether, in each pass that was trained on, the ranks fetched shares of one data set."""
    early = "; ".join(_early_loaders(history))
    return tuple(
        Violation(f"{text}; {early}" if early else text, epoch)
        for epoch, passes in sorted(_training_passes(history).items())
        for text in _wrong_shares(passes, world_size, terms)
    )


def _training_passes(history: History) -> dict[int, list[Fetched]]:
    """The passes that ranks trained on, by order: ranks may number their loaders otherwise."""
    passes: defaultdict[int, list[Fetched]] = defaultdict(list)
    seen: Counter[int] = Counter()
    for fetched in history:
        if isinstance(fetched, Fetched) and fetched.trained:
            passes[seen[fetched.rank]].append(fetched)
            seen[fetched.rank] += 1
    return passes


def _wrong_shares(passes: list[Fetched], world_size: int, terms: Terms) -> Iterator[str]:
    sizes: defaultdict[int, set[int]] = defaultdict(set)
    owners: defaultdict[int, list[int]] = defaultdict(list)
    for fetched in passes:
        sizes[fetched.size].add(fetched.rank)
        for index in fetched.indices:
            owners[index].append(fetched.rank)
    if len(sizes) > 1:
        listed = {f"{size} samples": ranks for size, ranks in sorted(sizes.items())}
        yield f"the ranks have data sets of different sizes: {_owners(listed)}"
        return
    (size,) = sizes
    foreign = sorted(index for index in owners if not 0 <= index < size)
    for index in foreign:
        yield f"index {index} is none of {size} samples, for {ranks_in_words(owners.pop(index))}"
    shares = {fetched.rank: fetched.indices for fetched in passes}
    if "replacement" in terms.traits:
        for one, other in equal_draws(shares):
            yield f"ranks {one} and {other} train on the same draws: {_first_of(shares[one])}"
        return
    batch_size = max(terms.batch_size, *(fetched.batch for fetched in passes))
    surplus_allowed, _ = terms.allowed_in_all(size, world_size)
    _, missing = replace(terms, batch_size=batch_size).allowed_in_all(size, world_size)
    if "endless" in terms.traits:
        allowance = Allowance(surplus_allowed, missing)
        batches = {fetched.rank: list(_batches(fetched)) for fetched in passes}
        text = uneven_passes(batches, size, terms.copies, allowance)
        yield from [text] if text else []
        return
    copies = terms.copies
    repeated = {index: ranks for index, ranks in sorted(owners.items()) if len(ranks) > copies}
    surplus = sum(len(ranks) - copies for ranks in repeated.values())
    if surplus > surplus_allowed:
        index, ranks = next(iter(repeated.items()))
        yield (
            f"{surplus} of {size} samples are trained on once more; "
            f"index {index} by {ranks_in_words(ranks)}"
        )
    lost = [index for index in range(size) if index not in owners]
    complete = copies == 1 and all(fetched.complete for fetched in passes)
    if complete and len(lost) > missing:
        yield f"{len(lost)} of {size} samples are trained on by no rank, first index {lost[0]}"


def _batches(fetched: Fetched) -> Iterator[tuple[int, ...]]:
    for start in range(0, len(fetched.indices), max(1, fetched.batch)):
        yield fetched.indices[start : start + max(1, fetched.batch)]


def _first_of(indices: Sequence[int]) -> str:
    return ", ".join(map(str, indices[:6]))


def _early_loaders(history: History) -> Iterator[str]:
    """The first loader of each rank that was made before the process group."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for rank in sorted({r.rank for r in history if isinstance(r, Happened)}):
        stages = [r for r in history if isinstance(r, Happened) and r.rank == rank]
        group, loader = _first(stages, "init_process_group"), _first(stages, "loader")
        if loader is not None and (group is None or loader < group):
            later = "" if group is None else f" at {stages[group].site}"
            text = f"made a loader at {stages[loader].site} before init_process_group{later}"
            found[text].append(rank)
    yield from (f"{ranks_in_words(ranks)} {text}" for text, ranks in found.items())


def _first(stages: list[Happened], stage: Stage) -> int | None:
    return next((place for place, seen in enumerate(stages) if seen.stage == stage), None)


# ------------------------------------------------------------------ LIF-03


def judge_same_results(base: History, other: History) -> tuple[Violation, ...]:
    """Parameters after each step, samples, files and endings are those of the other run."""
    first, second = _results(base), _results(other)
    different = [what for what in first if first[what] != second.get(what)]
    different += [what for what in second if what not in first]
    return tuple(
        Violation(
            f"{what}: {_shown(second.get(what), first.get(what))}, "
            f"undisturbed {_shown(first.get(what), second.get(what))}"
        )
        for what in different
    )


Result: TypeAlias = str | tuple[int, ...]


def _results(history: History) -> dict[str, Result]:
    results: dict[str, Result] = {}
    for end in ends_of(history):
        results[f"end of rank {end.rank}"] = words_of(end)
    for seen in history:
        if isinstance(seen, Optimized):
            results[f"rank {seen.rank}, parameters after step {seen.step}"] = seen.digest
        elif isinstance(seen, Fetched):
            name = f"rank {seen.rank}, samples of loader {seen.loader}, pass {seen.number}"
            results[name] = seen.indices
        elif isinstance(seen, Made):
            results[f"file {seen.path}"] = seen.digest
    return results


def _shown(result: Result | None, other: Result | None) -> str:
    """The value; of samples only those from the first difference on."""
    if result is None:
        return "none"
    if isinstance(result, str):
        return result
    pairs = zip(result, other or (), strict=False)
    equal = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    before = f"after {equal} samples " if equal else ""
    return f"{before}{list(result[equal:][:6])}"


# ------------------------------------------------------------------ LIF-04


def judge_optimizer(history: History) -> tuple[Violation, ...]:
    """The optimizers own the live trainable parameters, and steps change them."""
    steps: defaultdict[int, list[Optimized]] = defaultdict(list)
    for step in history:
        if isinstance(step, Optimized):
            steps[step.rank].append(step)
    found: defaultdict[str, list[int]] = defaultdict(list)
    # A rank's part of sharded parameters may be empty, or be rows of a table that no sample used:
    # parameters are idle if no rank's part changes.
    moved = any(step.sharded and step.changed for made in steps.values() for step in made)
    for rank, made in sorted(steps.items()):
        idle = () if moved and made[-1].sharded else _idle(made)
        for text in (*idle, *_strangers(rank, made, history)):
            found[text].append(rank)
    return tuple(Violation(f"{text}, on {ranks_in_words(r)}") for text, r in found.items())


def _idle(steps: list[Optimized]) -> Iterator[str]:
    """Steps with a learning rate of 0, as at the start of a warm-up, may change nothing."""
    meant = [step for step in steps if step.rate != 0]
    if meant and not any(step.changed for step in meant):
        others = len(meant) - 1
        later = f", nor in the {others} after it" if others else ""
        yield f"no parameter changed in step {meant[0].step}{later}"


def _strangers(rank: int, steps: list[Optimized], history: History) -> Iterator[str]:
    wrapped = [step for step in steps if step.wrapped]
    if not wrapped:
        return
    owned = {name for step in wrapped for name in step.owned}
    lacking = [name for name in wrapped[-1].live if name not in owned]
    foreign = max(step.foreign for step in wrapped)
    when = _order_of_making(rank, history)
    if lacking:
        yield (
            f"the optimizer lacks {len(lacking)} of {len(wrapped[-1].live)} live "
            f"parameters ({lacking[0]} and so on){when}"
        )
    if foreign:
        yield f"the optimizer has {foreign} parameters of no wrapped module{when}"


def _order_of_making(rank: int, history: History) -> str:
    stages = [r for r in history if isinstance(r, Happened) and r.rank == rank]
    optimizer, wrap = _first(stages, "optimizer"), _first(stages, "wrap")
    if optimizer is None or wrap is None or wrap < optimizer:
        return ""
    return f", made at {stages[optimizer].site} before the wrap at {stages[wrap].site}"


# ------------------------------------------------------------------ LIF-05


def judge_compiled(compiled: History, eager: History) -> tuple[Violation, ...]:
    """Something was compiled, it trains as eager code does, and checkpoints name the bare model."""
    graphs = dict.fromkeys(ranks_that_came_through(compiled), 0)
    graphs.update({seen.rank: seen.graphs for seen in compiled if isinstance(seen, Compiled)})
    return (
        *(
            Violation(f"nothing was compiled on rank {rank}")
            for rank, number in sorted(graphs.items())
            if number == 0
        ),
        *(Violation(text) for text in _other_training(compiled, eager)),
        *judge_checkpoint_names(compiled),
    )


def judge_checkpoint_names(history: History) -> tuple[Violation, ...]:
    """What was saved loads into the bare module."""
    return tuple(
        Violation(
            f"{saved.path}, saved by rank {saved.rank}, has {len(saved.wrong)} names that the "
            f"bare module has not, the first is {saved.wrong[0]}"
        )
        for saved in history
        if isinstance(saved, Saved) and saved.wrong
    )


def _other_training(compiled: History, eager: History) -> Iterator[str]:
    steps, expected = _steps(compiled), _steps(eager)
    if not steps and not expected:
        yield "no optimizer step was made, compiled or not"
    for rank, number in sorted(steps.keys() | expected.keys()):
        step, other = steps.get((rank, number)), expected.get((rank, number))
        if step is None or other is None or len(other.sums) != len(step.sums):
            yield f"rank {rank} has another step {number} without torch.compile"
            continue
        name = _unequal(step, other)
        if name:
            yield f"rank {rank}: {name} differs after step {number} from eager training"


def _steps(history: History) -> dict[tuple[int, int], Optimized]:
    return {(s.rank, s.step): s for s in history if isinstance(s, Optimized)}


def _unequal(step: Optimized, other: Optimized) -> str:
    for place, name in enumerate(step.live):
        pairs = [*zip(step.sums, other.sums, strict=True)][2 * place :][:2]
        scale = max(pairs[1])
        if not all(_near(value, right, scale) for value, right in pairs):
            return name
    return ""


def _near(value: float, right: float, scale: float) -> bool:
    """Whether two sums are close; an infinite scale would make all finite numbers close."""
    if value == right or (math.isnan(value) and math.isnan(right)):
        return True
    return math.isfinite(scale) and abs(value - right) <= TOLERANCE * scale


# ------------------------------------------------------------------ LIF-06 to LIF-09


def judge_nothing_left(history: History) -> tuple[Violation, ...]:
    """Nothing of the run is there after it."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for left in history:
        if isinstance(left, Left):
            found[left.what].append(left.rank)
    return tuple(Violation(f"{what} is left on {ranks_in_words(r)}") for what, r in found.items())


def judge_death_shows(history: History) -> tuple[Violation, ...]:
    """The run in which a rank was made to die fails: some exit code is not 0."""
    ends = ends_of(history)
    if any(end.code not in (0, None) for end in ends):
        return ()
    what = ", ".join(f"rank {end.rank} {_code(end)}" for end in ends)
    return (Violation(f"no rank failed: {what or NO_END}"),)


def _code(end: Ended) -> str:
    if end.code is None:
        return "had to be stopped"
    raised = f" after {end.error}" if end.error else ""
    return f"ended with exit code {end.code}{raised}"


def judge_ended_in_time(history: History) -> tuple[Violation, ...]:
    """No rank had to be stopped, and the end of none is unknown."""
    ends = in_order(history)
    if not ends:
        return (Violation(NO_END),)
    unseen = sorted({record.rank for record in history} - {end.rank for end in ends})
    if unseen:
        return (Violation(f"the end of {ranks_in_words(unseen)} was not seen"),)
    dead = [words_of(end) for end in ends if end.code not in (0, None)]
    after = f", after {dead[0]}" if dead else ""
    return tuple(Violation(f"{words_of(end)}{after}") for end in ends if end.code is None)


def judge_agreement(history: History) -> tuple[Violation, ...]:
    """Backend, world size and kind of device are the same on all ranks."""
    chosen: defaultdict[str, defaultdict[int, dict[str, None]]]
    chosen = defaultdict(lambda: defaultdict(dict))
    for choice in history:
        if isinstance(choice, Chose):
            chosen[choice.what][choice.rank][choice.value] = None
    ranks = {end.rank for end in ends_of(history)}
    return tuple(
        Violation(f"the {what} differs: {_owners(owners)}")
        for what, by_rank in chosen.items()
        if len(owners := _by_values(by_rank, ranks.union(by_rank))) > 1
    )


def _by_values(by_rank: Mapping[int, Iterable[str]], ranks: set[int]) -> dict[str, set[int]]:
    """A rank may choose more than once, for several groups."""
    owners: defaultdict[str, set[int]] = defaultdict(set)
    for rank in sorted(ranks):
        owners[", then ".join(by_rank.get(rank, ())) or "none"].add(rank)
    return owners


def _owners(owners: dict[str, set[int]]) -> str:
    return "; ".join(f"{ranks_in_words(sorted(r))}: {value}" for value, r in owners.items())
