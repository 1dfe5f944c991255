"""Judges of the lifecycle guarantees: pure functions from what ranks did to violations."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from ddp_conformance.checks.endings import came_through, ends_of, in_order, words_of
from ddp_conformance.history import History
from ddp_conformance.training_history import (
    Chose,
    Compiled,
    Fetched,
    Happened,
    Left,
    Made,
    Optimized,
    Saved,
    Stage,
)
from ddp_conformance.verdict import Violation, ranks_in_words

TOLERANCE = 1e-4
"""Between a compiled and an eager run, relative to the sum of absolute values."""


def judge_finished(history: History) -> tuple[Violation, ...]:
    """Every rank came to the end of its entry, with exit code 0, and trained; causes first."""
    if not came_through(history):
        ends = [end for end in in_order(history) if not (end.returned and end.code == 0)]
        return tuple(
            Violation(f"{words_of(end)}; its last stage was {_last_stage(history, end.rank)}")
            for end in ends
        )
    trained = {step.rank for step in history if isinstance(step, Optimized)}
    return tuple(
        Violation(f"rank {end.rank} made no optimizer step")
        for end in ends_of(history)
        if end.rank not in trained
    )


def _last_stage(history: History, rank: int) -> str:
    stages = [r for r in history if isinstance(r, Happened) and r.rank == rank]
    if not stages:
        return "its start"
    return f"{stages[-1].stage} at {stages[-1].site}" if stages[-1].site else stages[-1].stage


# ------------------------------------------------------------------ LIF-02


def judge_deliveries(
    history: History, world_size: int, traits: AbstractSet[str]
) -> tuple[Violation, ...]:
    """In each pass that was trained on, the ranks fetched shares of one data set."""
    early = "; ".join(_early_loaders(history))
    return tuple(
        Violation(f"{text}; {early}" if early else text, epoch)
        for epoch, passes in sorted(_training_passes(history).items())
        for text in _wrong_shares(passes, world_size, traits)
    )


def _training_passes(history: History) -> dict[int, list[Fetched]]:
    """By their number among those that a rank trained on: ranks may count loaders otherwise."""
    passes: defaultdict[int, list[Fetched]] = defaultdict(list)
    seen: Counter[int] = Counter()
    for fetched in history:
        if isinstance(fetched, Fetched) and fetched.trained:
            passes[seen[fetched.rank]].append(fetched)
            seen[fetched.rank] += 1
    return passes


def _wrong_shares(
    passes: list[Fetched], world_size: int, traits: AbstractSet[str]
) -> Iterator[str]:
    sizes = {fetched.size for fetched in passes}
    if len(sizes) > 1:
        yield f"the ranks have data sets of {sorted(sizes)} samples"
        return
    size = sizes.pop()
    owners: defaultdict[int, list[int]] = defaultdict(list)
    for fetched in passes:
        for index in fetched.indices:
            owners[index].append(fetched.rank)
    repeated = {index: ranks for index, ranks in sorted(owners.items()) if len(ranks) > 1}
    surplus = sum(len(ranks) - 1 for ranks in repeated.values())
    if surplus > (-size % world_size if "pads" in traits else 0):
        index, ranks = next(iter(repeated.items()))
        yield (
            f"{surplus} of {size} samples are trained on once more; "
            f"index {index} by {ranks_in_words(ranks)}"
        )
    missing = size - len(owners)
    step = world_size * max(fetched.batch for fetched in passes)
    if all(f.complete for f in passes) and missing > (size % step if "drops" in traits else 0):
        yield f"{missing} of {size} samples are trained on by no rank"


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
        Violation(f"{what}: {second.get(what, 'none')}, undisturbed {first.get(what, 'none')}")
        for what in different
    )


def _results(history: History) -> dict[str, str]:
    results: dict[str, str] = {}
    for end in ends_of(history):
        results[f"end of rank {end.rank}"] = words_of(end)
    for seen in history:
        if isinstance(seen, Optimized):
            results[f"rank {seen.rank}, parameters after step {seen.step}"] = seen.digest
        elif isinstance(seen, Fetched):
            name = f"rank {seen.rank}, samples of loader {seen.loader}, pass {seen.number}"
            results[name] = str(list(seen.indices[:6]))
        elif isinstance(seen, Made):
            results[f"file {seen.path}"] = seen.digest[:8]
    return results


# ------------------------------------------------------------------ LIF-04


def judge_optimizer(history: History) -> tuple[Violation, ...]:
    """The optimizers own the live trainable parameters, and steps change them."""
    steps: defaultdict[int, list[Optimized]] = defaultdict(list)
    for step in history:
        if isinstance(step, Optimized):
            steps[step.rank].append(step)
    found: defaultdict[str, list[int]] = defaultdict(list)
    for rank, made in sorted(steps.items()):
        for text in (*_idle(made), *_strangers(rank, made, history)):
            found[text].append(rank)
    return tuple(Violation(f"{text}, on {ranks_in_words(r)}") for text, r in found.items())


def _idle(steps: list[Optimized]) -> Iterator[str]:
    """A learning rate of 0, as a warm-up begins with, rightly changes nothing."""
    meant = [step for step in steps if step.rate > 0]
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
    return (
        *(
            Violation(f"nothing was compiled on rank {seen.rank}")
            for seen in compiled
            if isinstance(seen, Compiled) and seen.graphs == 0
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
    expected = {(s.rank, s.step): s for s in eager if isinstance(s, Optimized)}
    for step in compiled:
        if not isinstance(step, Optimized):
            continue
        other = expected.get((step.rank, step.step))
        if other is None or len(other.sums) != len(step.sums):
            yield f"rank {step.rank} has another step {step.step} without torch.compile"
            continue
        name = _unequal(step, other)
        if name:
            yield f"rank {step.rank}: {name} differs after step {step.step} from eager training"


def _unequal(step: Optimized, other: Optimized) -> str:
    for place, name in enumerate(step.live):
        scale = max(step.sums[2 * place + 1], other.sums[2 * place + 1])
        pairs = zip(step.sums[2 * place :][:2], other.sums[2 * place :][:2], strict=True)
        if any(not math.isclose(a, b, abs_tol=TOLERANCE * scale) for a, b in pairs):
            return name
    return ""


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
    what = ", ".join(f"rank {end.rank} {_code(end.code)}" for end in ends)
    return (Violation(f"no rank failed: {what}"),)


def _code(code: int | None) -> str:
    return "had to be stopped" if code is None else f"ended with {code}"


def judge_ended_in_time(history: History) -> tuple[Violation, ...]:
    """No rank had to be stopped."""
    ends = in_order(history)
    dead = [words_of(end) for end in ends if end.code not in (0, None)]
    after = f", after {dead[0]}" if dead else ""
    return tuple(Violation(f"{words_of(end)}{after}") for end in ends if end.code is None)


def judge_agreement(history: History) -> tuple[Violation, ...]:
    """Backend, world size and kind of device are the same on all ranks."""
    chosen: defaultdict[str, defaultdict[str, set[int]]]
    chosen = defaultdict(lambda: defaultdict(set))
    for choice in history:
        if isinstance(choice, Chose):
            chosen[choice.what][choice.value].add(choice.rank)
    ranks = {end.rank for end in ends_of(history)}
    for owners in chosen.values():
        silent = ranks - set().union(*owners.values())
        if silent:
            owners["none"] = silent
    return tuple(
        Violation(f"the {what} differs: {_owners(owners)}")
        for what, owners in chosen.items()
        if len(owners) > 1
    )


def _owners(owners: dict[str, set[int]]) -> str:
    return "; ".join(f"{ranks_in_words(sorted(r))}: {value}" for value, r in owners.items())
