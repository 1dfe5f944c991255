"""WIN and CBK-03: data modules that move their windows at the wrong time, or only half."""

from __future__ import annotations

from typing import Any

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.windows.data import WindowRun
from ddp_conformance.windows.mutants.window_mutants import (
    AfterRealValidation,
    AfterValidation,
    AtEpochStart,
    AtEpochStartWithBarrier,
    AtTrainStart,
    BroadcastRandom,
    CachedDatasetWindows,
    CountingWindows,
    CountsTwice,
    EditingWindows,
    KeptLoaderWindows,
    KeptShortWindows,
    LoaderInBatch,
    Mover,
    OnRankZero,
    RankLocalRandom,
    RebindingWindows,
    SeededRandom,
    SetupAtEnd,
    SetupInBatch,
    SetupInEpoch,
    ShortWindows,
    UncountedWindows,
    ValidationToo,
    Windows,
    nth_window,
)
from ddp_conformance.windows.subjects import DataModule


def moved_at_end(case: Case) -> WindowRun:
    """Correct: the window moves at the end of the epoch."""
    return WindowRun(Windows(case), [Mover()])


def moved_at_epoch_start(case: Case) -> WindowRun:
    """One epoch late."""
    return WindowRun(Windows(case), [AtEpochStart()])


def moved_at_epoch_start_with_barrier(case: Case) -> WindowRun:
    """One epoch late, in step."""
    return WindowRun(Windows(case), [AtEpochStartWithBarrier()])


def moved_at_train_start(case: Case) -> WindowRun:
    """Epoch 0 on another window than announced."""
    return WindowRun(Windows(case), [AtTrainStart()])


def never_reloaded(case: Case) -> WindowRun:
    """A Trainer that keeps the first loader."""
    return WindowRun(Windows(case), [Mover()], reload_every=0)


def rebound_under_workers(case: Case) -> WindowRun:
    """Right without workers."""
    return WindowRun(RebindingWindows(case), [Mover()])


def kept_for_workers(case: Case) -> WindowRun:
    """Right without persistent workers."""
    return WindowRun(KeptLoaderWindows(case), [Mover()])


def new_loader_for_workers(case: Case) -> WindowRun:
    """Persistent workers end with their loader, and each window has a loader of its own."""
    return WindowRun(Windows(case), [Mover()])


def kept_where_empty(case: Case) -> WindowRun:
    """Right where a window has samples enough for every rank."""
    return WindowRun(KeptShortWindows(case), [Mover()])


def filled_where_empty(case: Case) -> WindowRun:
    """An empty shard is filled up from its own window."""
    return WindowRun(ShortWindows(case), [Mover()])


def edited_in_place(case: Case) -> WindowRun:
    """The same dictionary and list."""
    return WindowRun(EditingWindows(case), [Mover()])


def cached_dataset(case: Case) -> WindowRun:
    """The same data set."""
    return WindowRun(CachedDatasetWindows(case), [Mover()])


def counted_only(case: Case) -> WindowRun:
    """All objects stay the same."""
    return WindowRun(CountingWindows(case), [Mover()])


def not_counted(case: Case) -> WindowRun:
    """The version is 1 for all builds."""
    return WindowRun(UncountedWindows(case), [Mover()])


def counted_twice(case: Case) -> WindowRun:
    """Versions 1, 3, 5 for builds 1, 2, 3."""
    return WindowRun(Windows(case), [CountsTwice()])


def rank_local_random(case: Case) -> WindowRun:
    """A window for each rank."""
    return WindowRun(Windows(case), [RankLocalRandom()])


def seeded_random(case: Case) -> WindowRun:
    """One random window for all."""
    return WindowRun(Windows(case), [SeededRandom()])


def broadcast_random(case: Case) -> WindowRun:
    """One random window for all, from rank 0."""
    return WindowRun(Windows(case), [BroadcastRandom()])


def moved_on_rank_zero(case: Case) -> WindowRun:
    """Rank 0 goes ahead."""
    return WindowRun(Windows(case), [OnRankZero()])


def setup_at_epoch_start(case: Case) -> WindowRun:
    """Calls ``setup()`` in an epoch, which here rebuilds nothing."""
    return WindowRun(Windows(case), [SetupInEpoch()])


def setup_in_batch(case: Case) -> WindowRun:
    """The same at a batch."""
    return WindowRun(Windows(case), [SetupInBatch()])


def loader_in_batch(case: Case) -> WindowRun:
    """Builds a second loader in an epoch."""
    return WindowRun(Windows(case), [LoaderInBatch()])


def setup_at_epoch_end(case: Case) -> WindowRun:
    """Between epochs anything may be built."""
    return WindowRun(Windows(case), [SetupAtEnd()])


def validation_moved(case: Case) -> WindowRun:
    """Validation windows move, so that losses cannot be compared."""
    return WindowRun(Windows(case), [ValidationToo()])


def moved_in_sanity_check(case: Case) -> WindowRun:
    """One validation window is never used."""
    return WindowRun(Windows(case), [AfterValidation()])


def moved_after_validation(case: Case) -> WindowRun:
    """Each validation on a window of its own."""
    return WindowRun(Windows(case), [AfterRealValidation()])


FIXED = frozenset({"fixed_validation"})
SCHEDULED = frozenset({"fixed_validation", "scheduled"})
STARTS = frozenset({"fixed_validation", "any_workers"})
TWO = (2,)
ONE_AND_TWO = (1, 2)
"""A window is the same object for any number of ranks; the reference runs on 4."""


def scheduled(make: Any, name: str = "") -> DataModule:
    """A subject that follows :func:`nth_window`."""
    return DataModule(make, SCHEDULED, name, schedule=nth_window)


MUTANTS = (
    Mutant(DataModule(moved_at_epoch_start, FIXED), "WIN-01", "moved at epoch start", TWO),
    Mutant(DataModule(moved_at_train_start, FIXED), "WIN-01", "moved at train start", TWO),
    Mutant(DataModule(never_reloaded, FIXED), "WIN-01", "loaders never reloaded", TWO),
    Mutant(
        DataModule(rebound_under_workers, FIXED), "WIN-01", "rebound under persistent workers", TWO
    ),
    Mutant(
        DataModule(kept_for_workers, STARTS), "WIN-01", "loader kept for persistent workers", TWO
    ),
    Mutant(DataModule(kept_where_empty, FIXED), "WIN-01", "empty shard keeps an old sample"),
    Mutant(DataModule(edited_in_place, FIXED), "WIN-02", "summary edited in place", TWO),
    Mutant(DataModule(cached_dataset, FIXED), "WIN-02", "data set cached", TWO),
    Mutant(DataModule(counted_only, FIXED), "WIN-02", "version raised, nothing rebuilt", TWO),
    Mutant(DataModule(not_counted, FIXED), "WIN-03", "rebuilt without counting", TWO),
    Mutant(DataModule(counted_twice, FIXED), "WIN-03", "counter ahead of the data", TWO),
    Mutant(DataModule(rank_local_random, FIXED), "WIN-04", "rank-local random window"),
    Mutant(DataModule(moved_on_rank_zero, FIXED), "WIN-04", "window set on rank 0 only"),
    Mutant(DataModule(setup_at_epoch_start, FIXED), "WIN-05", "setup() at epoch start", TWO),
    Mutant(DataModule(setup_in_batch, FIXED), "WIN-05", "setup() at a batch", TWO),
    Mutant(DataModule(loader_in_batch, FIXED), "WIN-05", "loader built at a batch", TWO),
    Mutant(DataModule(validation_moved, FIXED), "WIN-07", "validation always resampled", (2, 3)),
    Mutant(DataModule(moved_in_sanity_check), "WIN-08", "moved in the sanity check", TWO),
    Mutant(
        scheduled(moved_at_epoch_start_with_barrier),
        "CBK-03",
        "moved, with a barrier, at epoch start",
        TWO,
    ),
)

BENIGN_VARIANTS = (
    BenignVariant(
        DataModule(new_loader_for_workers, STARTS), "persistent workers, new loader", TWO
    ),
    BenignVariant(scheduled(filled_where_empty), "empty shard filled up from its window", (4,)),
    BenignVariant(scheduled(moved_at_end), "moved at epoch end", ONE_AND_TWO),
    BenignVariant(
        DataModule(seeded_random, FIXED), "random window, a function of the epoch", ONE_AND_TWO
    ),
    BenignVariant(
        DataModule(broadcast_random, FIXED),
        "random window, drawn on rank 0 and broadcast",
        ONE_AND_TWO,
    ),
    BenignVariant(scheduled(setup_at_epoch_end), "setup() after the last batch", ONE_AND_TWO),
    BenignVariant(
        DataModule(moved_after_validation), "validation resampled, declared", ONE_AND_TWO
    ),
)
