"""Judges of the guarantees for moving windows: pure functions from histories to violations."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations

from ddp_conformance.framework.history import History
from ddp_conformance.framework.verdict import Violation, ranks_in_words
from ddp_conformance.windows.history import (
    Stage,
    WindowEvent,
    WindowPart,
    WindowReader,
    WindowSample,
)

NAMES: Mapping[Stage, str] = {
    "sanity": "the sanity check",
    "train": "training",
    "val": "validation",
}


def judge_in_force(history: History) -> tuple[Violation, ...]:
    """WIN-01: every sample comes from the window that its epoch was announced to use."""
    in_force: dict[tuple[int, Stage, int], str] = {}
    found: dict[tuple[int, Stage, int], Violation] = {}
    for sample in samples_of(history):
        key = (sample.rank, sample.stage, sample.epoch)
        # What is announced at the first batch holds for the epoch.
        expected = in_force.setdefault(key, sample.announced_window)
        if sample.window != expected and key not in found:
            found[key] = Violation(
                f"{_where(sample)} is of window {sample.window}, in force is {expected}",
                sample.epoch,
            )
    return (*found.values(), *_untrained(history))


def judge_fresh(history: History) -> tuple[Violation, ...]:
    """WIN-02: a version shares no object, and no sample's token, with another one."""
    untrained = tuple(_untrained(history))
    if untrained:
        return untrained
    if len(_versions(history, "train")) == 1:
        return (_unmoved(history),)
    return (*_kept_objects(history), *_kept_tokens(history))


def judge_counter(history: History) -> tuple[Violation, ...]:
    """WIN-03: samples carry the version that the counter shows, and one version is one build."""
    found: dict[tuple[int, Stage, int], Violation] = {}
    for sample in samples_of(history):
        key = (sample.rank, sample.stage, sample.epoch)
        if sample.version != sample.announced_version and key not in found:
            found[key] = Violation(
                f"{_where(sample)} is of version {sample.version}, the counter shows "
                f"{sample.announced_version}",
                sample.epoch,
            )
    return (*found.values(), *_ambiguous_versions(history), *_untrained(history))


def judge_same_windows(history: History) -> tuple[Violation, ...]:
    """WIN-04: the same windows are announced and delivered on all ranks in the same epoch."""
    return (
        *_different(history, "announced", lambda sample: sample.announced_window),
        *_different(history, "delivered", lambda sample: sample.window),
    )


def judge_undisturbed(history: History) -> tuple[Violation, ...]:
    """WIN-05: no loader is built and no ``setup()`` runs between the first and last batch.

    The span begins with the hook of the epoch's start: the loader is in use by then.
    """
    by_epoch: defaultdict[tuple[int, int], list[WindowEvent]] = defaultdict(list)
    for event in history:
        if isinstance(event, WindowEvent):
            by_epoch[event.epoch, event.rank].append(event)
    return tuple(
        Violation(f"rank {rank}: {what} after {batches} of {total} batches", epoch)
        for (epoch, rank), events in sorted(by_epoch.items())
        for what, batches, total in _disturbances(events)
    )


def judge_readers(history: History) -> tuple[Violation, ...]:
    """WIN-06: every sample carries the rank that it is delivered to; at least one worker reads."""
    found: dict[int, Violation] = {}
    readers = [record for record in history if isinstance(record, WindowReader)]
    for reader in readers:
        if reader.found != reader.rank and reader.rank not in found:
            found[reader.rank] = Violation(
                f"worker {reader.worker} of rank {reader.rank} takes itself for rank "
                f"{reader.found}: sample {reader.index}"
            )
    if not any(reader.worker >= 0 for reader in readers):
        return (Violation("no worker read a sample"),)
    return tuple(found.values())


def judge_fixed_validation(history: History) -> tuple[Violation, ...]:
    """WIN-07: all ranks together validate the same samples in all epochs."""
    by_epoch: defaultdict[int, Counter[tuple[str, int]]] = defaultdict(Counter)
    for sample in samples_of(history):
        if sample.stage == "val" and not sample.repeated:
            by_epoch[sample.epoch][sample.window, sample.index] += 1
    if not by_epoch:
        return (Violation("no validation sample was delivered"),)
    first, *later = sorted(by_epoch)
    return tuple(
        Violation(_difference(by_epoch[first], by_epoch[epoch], first), epoch)
        for epoch in later
        if by_epoch[epoch] != by_epoch[first]
    )


def judge_all_used(history: History) -> tuple[Violation, ...]:
    """WIN-08, one half: no version is passed over."""
    found = []
    for stage in ("train", "val"):
        used = _versions(history, stage)
        missing = sorted(set(range(min(used, default=0), max(used, default=0))) - used)
        found += [Violation(f"version {v} was never used in {NAMES[stage]}") for v in missing]
    return tuple(found)


def judge_same_schedule(without: History, with_sanity: History) -> tuple[Violation, ...]:
    """WIN-08, other half: windows and versions are the same with and without a sanity check."""
    expected, got = _schedule(without), _schedule(with_sanity)
    return tuple(
        Violation(
            f"rank {rank}: {NAMES[stage]} on {_in_words(got.get(key, ()))} after a sanity check, "
            f"on {_in_words(expected.get(key, ()))} without",
            epoch,
        )
        for key in sorted(expected.keys() | got.keys())
        for epoch, stage, rank in [key]
        if expected.get(key) != got.get(key)
    )


def judge_schedule(history: History, schedule: Callable[[int], str]) -> tuple[Violation, ...]:
    """CBK-03: each epoch trains on the window that was meant for it, on every rank."""
    found: dict[tuple[int, int], Violation] = {}
    for sample in samples_of(history):
        key = (sample.rank, sample.epoch)
        expected = schedule(sample.epoch)
        if sample.stage == "train" and sample.window != expected and key not in found:
            found[key] = Violation(
                f"{_where(sample)} is of {sample.window}, meant is {expected}", sample.epoch
            )
    return (*found.values(), *_untrained(history))


def samples_of(history: History) -> Iterator[WindowSample]:
    """The samples of a history, in its order."""
    return (record for record in history if isinstance(record, WindowSample))


def _untrained(history: History) -> Iterator[Violation]:
    if not _versions(history, "train"):
        yield Violation("no training sample was delivered")


def _unmoved(history: History) -> Violation:
    """All training samples are of one version: the counter stayed there, or it alone moved."""
    trained = [sample for sample in samples_of(history) if sample.stage == "train"]
    announced = sorted({sample.announced_version for sample in trained})
    if len(announced) == 1:
        return Violation("the version of the training data never changed")
    return Violation(
        f"all training samples are of version {trained[0].version}, while the counter went from "
        f"{announced[0]} to {announced[-1]}"
    )


def _kept_objects(history: History) -> Iterator[Violation]:
    first: dict[tuple[int, str, str, int], WindowPart] = {}
    seen: set[tuple[int, str, str]] = set()
    for part in history:
        if not isinstance(part, WindowPart):
            continue
        split = "train" if part.stage == "train" else "val"
        known = first.setdefault((part.rank, split, part.part, part.identity), part)
        if known.version != part.version and (part.rank, split, part.part) not in seen:
            seen.add((part.rank, split, part.part))
            yield Violation(
                f"rank {part.rank}: the {split} {part.part} of version {part.version} is the "
                f"object of version {known.version}",
                part.epoch,
            )


def _kept_tokens(history: History) -> Iterator[Violation]:
    versions: dict[tuple[int, str, str], int] = {}
    seen: set[tuple[int, str, str]] = set()
    for sample in samples_of(history):
        split = "train" if sample.stage == "train" else "val"
        key = (sample.rank, split, sample.token)
        first = versions.setdefault(key, sample.version)
        if sample.token and first != sample.version and key not in seen:
            seen.add(key)
            yield Violation(
                f"{_where(sample)} of version {sample.version} has the token of version {first}",
                sample.epoch,
            )


def _ambiguous_versions(history: History) -> Iterator[Violation]:
    builds: defaultdict[tuple[int, str, int], set[tuple[str, str]]] = defaultdict(set)
    for sample in samples_of(history):
        split = "train" if sample.stage == "train" else "val"
        builds[sample.rank, split, sample.version].add((sample.window, sample.token))
    for (rank, split, version), seen in sorted(builds.items()):
        if len(seen) > 1:
            windows = ", ".join(sorted({window for window, _ in seen}))
            yield Violation(
                f"rank {rank}: {split} version {version} stands for {len(seen)} builds, "
                f"of window {windows}"
            )


def _different(
    history: History, how: str, window_of: Callable[[WindowSample], str]
) -> Iterator[Violation]:
    windows: defaultdict[tuple[int, Stage], dict[str, set[int]]] = defaultdict(dict)
    for sample in samples_of(history):
        # A sample that only fills up a shard also has the window that its rank knows.
        ranks = windows[sample.epoch, sample.stage].setdefault(window_of(sample), set())
        ranks.add(sample.rank)
    for (epoch, stage), ranks_of in sorted(windows.items()):
        pairs = combinations(sorted(ranks_of.items()), 2)
        if any(ranks != others for (_, ranks), (_, others) in pairs):
            listed = ", ".join(
                f"{window} on {ranks_in_words(sorted(ranks))}"
                for window, ranks in sorted(ranks_of.items())
            )
            yield Violation(f"{how} for {NAMES[stage]}: {listed}", epoch)


def _disturbances(events: list[WindowEvent]) -> Iterator[tuple[str, int, int]]:
    total = sum(event.what == "batch end" for event in events)
    begun, batches = False, 0
    for event in events:
        begun = begun or event.what == "epoch start"
        batches += event.what == "batch end"
        if begun and batches < total and event.what in ("setup()", "train_dataloader()"):
            yield event.what, batches, total


def _difference(
    first: Counter[tuple[str, int]], other: Counter[tuple[str, int]], epoch: int
) -> str:
    window, index = min((first - other) | (other - first))
    return (
        f"validation has sample {index} of window {window} {other[window, index]} times, "
        f"epoch {epoch} had it {first[window, index]} times"
    )


def _schedule(history: History) -> dict[tuple[int, Stage, int], tuple[tuple[str, int], ...]]:
    seen: defaultdict[tuple[int, Stage, int], dict[tuple[str, int], None]] = defaultdict(dict)
    for sample in samples_of(history):
        if sample.stage != "sanity":
            seen[sample.epoch, sample.stage, sample.rank][sample.window, sample.version] = None
    return {key: tuple(builds) for key, builds in seen.items()}


def _in_words(builds: tuple[tuple[str, int], ...]) -> str:
    words = [f"{window} (version {version})" for window, version in builds]
    return ", ".join(words) or "nothing"


def _versions(history: History, stage: Stage) -> set[int]:
    return {sample.version for sample in samples_of(history) if sample.stage == stage}


def _where(sample: WindowSample) -> str:
    worker = "" if sample.worker in (None, -1) else f" worker {sample.worker}"
    place = f"rank {sample.rank}{worker}, {NAMES[sample.stage]}, batch {sample.step}"
    return f"{place}: sample {sample.index}"
