"""Kinds of subjects that deal samples out to ranks: samplers, their wrappers, and loaders."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ddp_conformance.framework.allowance import Groups, Terms, checked_terms
from ddp_conformance.framework.subjects import Subject


def announce_epoch(component: Any, epoch: int) -> None:
    """Call ``set_epoch`` wherever a training loop would: component, samplers, data set."""
    batch_sampler = getattr(component, "batch_sampler", None)
    listeners = (
        component,
        getattr(component, "sampler", None),
        batch_sampler,
        getattr(batch_sampler, "sampler", None),
        getattr(component, "dataset", None),
    )
    called: list[Any] = []
    for listener in listeners:
        set_epoch = getattr(listener, "set_epoch", None)
        if set_epoch is not None and all(listener is not other for other in called):
            set_epoch(epoch)
            called.append(listener)


def sampler_indices(item: Any) -> tuple[int, ...]:
    """The indices of what a sampler yields: one index, or those of a batch."""
    return as_indices(item)


def batch_indices(batch: Any) -> tuple[int, ...]:
    """The data set indices that a batch carries: ``batch["index"]``, ``batch.index`` or itself.

    Raises ``TypeError`` for a batch that carries none in any of these ways.
    """
    if isinstance(batch, Mapping):
        carried = batch.get("index")
    elif isinstance(batch, list | tuple | Tensor):
        carried = batch
    else:
        carried = getattr(batch, "index", None)
    if carried is None:
        raise TypeError(
            f"a batch of type {type(batch).__name__} carries no 'index'; let the data set return "
            "each sample's index, or pass Loader(indices=...) that finds them in a batch"
        )
    return as_indices(carried)


def as_indices(carried: Any) -> tuple[int, ...]:
    """One integer, or several in a tensor or any iterable; raises ``TypeError`` for others."""
    # A sampler's usual items; a search of sizes calls this a hundred thousand times.
    if type(carried) is int:
        return (carried,)
    values = carried.reshape(-1).tolist() if isinstance(carried, Tensor) else carried
    if not isinstance(values, Iterable):
        values = [values]
    return tuple(value if type(value) is int else _integer(value) for value in values)


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{value!r} is not a data set index; indices are integers")
    return operator.index(value)


@dataclass(frozen=True)
class Sampler(Subject):
    """Something that yields data set indices, or batches of them, for one rank.

    ``make(case)`` returns a new one for ``case.rank`` of ``case.world_size``.
    """

    kind: ClassVar[str] = "sampler"

    set_epoch: Callable[[Any, int], None] = announce_epoch
    """Called before each epoch, as a training loop does."""
    indices: Callable[[Any], tuple[int, ...]] = sampler_indices
    """The indices in one item that it yields."""
    batch_size: int = 1
    """Samples that ``pads`` or ``drops`` add to or take from a rank at once: those of its batches
    where all of them are made full, 1 where only the ranks' numbers of samples are made equal; with
    ``dynamic_batches`` those of the largest batch."""
    min_size: int = 0
    """Samples for each rank that the subject needs: with fewer than ``min_size * case.world_size``
    all ranks may raise the same exception."""
    copies: int = 1
    """Times that each sample comes in an epoch, as with repeated augmentation."""
    groups: Groups | None = None
    """``groups(size)`` has the group of each sample, where ``pads`` or ``drops`` make each group by
    itself even, as buckets of one length are."""
    draws: Callable[[int], int] | None = None
    """``draws(size)`` is the number of samples that all ranks together deliver in an epoch, where
    it is not ``copies * size``: a longer epoch of draws with replacement, a part of all copies."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self)


@dataclass(frozen=True)
class Loader(Subject):
    """Something that yields batches for one rank, samples carrying their data set index.

    ``make(case)`` returns a new one for ``case.rank`` of ``case.world_size``, over a data
    set of ``case.size`` samples.
    """

    kind: ClassVar[str] = "loader"

    set_epoch: Callable[[Any, int], None] = announce_epoch
    """Called before each epoch, as a training loop does."""
    indices: Callable[[Any], tuple[int, ...]] = batch_indices
    """The indices in one batch."""
    drawn: Callable[[Any], Any] | None = None
    """The numbers in one batch that were drawn at random, for each sample or for the batch:
    numbers, tensors, arrays, or lists of them. Without it only python's, NumPy's and torch's global
    generators are looked at, and none of the data set's own."""
    batch_size: int = 1
    """``batch_size`` as for :class:`Sampler`."""
    min_size: int = 0
    """``min_size`` as for :class:`Sampler`."""
    copies: int = 1
    """``copies`` as for :class:`Sampler`."""
    groups: Groups | None = None
    """``groups`` as for :class:`Sampler`."""
    draws: Callable[[int], int] | None = None
    """``draws`` as for :class:`Sampler`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self)


def terms_of(subject: Sampler | Loader) -> Terms:
    """What the subject declares about how often each sample is delivered."""
    return Terms(subject.traits, subject.batch_size, subject.copies, subject.groups, subject.draws)


def check_sizes(subject: Sampler | Loader) -> None:
    """Raise ``ValueError`` for sizes that are out of range or missing."""
    if subject.min_size < 0:
        raise ValueError(f"{subject.name}: min_size={subject.min_size}: give 0 or more")
    checked_terms(terms_of(subject), subject.name)
    if subject.batch_size == 1 and subject.traits >= {"pads", "drops"}:
        raise ValueError(
            f"{subject.name}: the traits 'drops' and 'pads' together need batch_size=, the number "
            "of samples in a full batch"
        )


@dataclass(frozen=True)
class SamplerWrapper(Subject):
    """Something that deals a sampler of the user's out to ranks, as training frameworks do.

    ``make(case, sampler)`` wraps a sampler that knows nothing of ranks, and that yields
    indices or batches of indices in a random order; it returns the share of ``case.rank``.
    It may raise instead, if it does not support the sampler.
    """

    kind: ClassVar[str] = "sampler wrapper"

    indices: Callable[[Any], tuple[int, ...]] = sampler_indices
    """The indices in one item that it yields."""
