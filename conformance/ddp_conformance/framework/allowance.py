"""How many samples a part may repeat or leave out, by what it declares."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

Groups: TypeAlias = Callable[[int], Sequence[Hashable]]
"""The group of each sample, of a number of samples."""


class Allowance(NamedTuple):
    """What is allowed for all ranks together, in one epoch."""

    surplus: int = 0
    """Deliveries more than samples."""
    missing: int = 0
    """Samples that no rank delivers."""


def allowed(
    size: int, world_size: int, traits: AbstractSet[str], batch_size: int = 1, workers: int = 1
) -> Allowance:
    """The allowance for dealing out ``size`` samples evenly, ``batch_size`` to a rank at a time.

    A part that both pads and drops makes the ranks' shares equal first, and then leaves out
    what fills no batch, as ``drop_last=True`` does over torch's ``DistributedSampler``. Each of
    the ``workers`` of a stream makes its own batches, and drops its own incomplete one.

    One with dynamic batches makes the ranks' numbers of batches equal, whatever is in them.
    """
    if "dynamic_batches" in traits:
        uneven = (world_size - 1) * batch_size
        missing = uneven * workers if "drops" in traits else 0
        return Allowance(uneven if "pads" in traits else 0, missing)
    step = world_size * batch_size
    if "drops" not in traits:
        return Allowance(surplus=-size % step if "pads" in traits else 0)
    surplus = -size % world_size if "pads" in traits else 0
    ends = step * workers if batch_size > 1 else step
    return Allowance(surplus, (size + surplus) % ends)


@dataclass(frozen=True)
class Terms:
    """What a part declares about how often it delivers each sample."""

    traits: AbstractSet[str] = frozenset()
    batch_size: int = 1
    copies: int = 1
    """How often each sample is delivered in an epoch."""
    groups: Groups | None = None
    """Samples of one group are padded or dropped together: one length, one image format."""
    draws: Callable[[int], int] | None = None
    """Deliveries in an epoch, where they are not ``copies`` of all samples."""

    def total(self, size: int) -> int:
        """Deliveries of ``size`` samples in an epoch, before any are added or left out."""
        return self.copies * size if self.draws is None else self.draws(size)

    def members(self, size: int) -> list[Sequence[int]]:
        """The samples of each group. Raises ``ValueError`` if ``groups`` returns another number."""
        if self.groups is None:
            return [range(size)]
        names = self.groups(size)
        if len(names) != size:
            raise ValueError(f"groups= has {len(names)} groups for {size} samples")
        found: defaultdict[Hashable, list[int]] = defaultdict(list)
        for index, name in enumerate(names):
            found[name].append(index)
        return list(found.values())

    def allowed(self, size: int, world_size: int, workers: int = 1) -> Allowance:
        """The number allowed for a group of ``size`` samples."""
        return allowed(self.total(size), world_size, self.traits, self.batch_size, workers)

    def allowed_in_all(self, size: int, world_size: int, workers: int = 1) -> Allowance:
        """The number allowed for all groups of ``size`` samples together."""
        each = [self.allowed(len(one), world_size, workers) for one in self.members(size)]
        return Allowance(sum(one.surplus for one in each), sum(one.missing for one in each))


def checked_terms(terms: Terms, owner: str) -> Terms:
    """The terms; raises ``ValueError`` for numbers out of range and for contradictions."""
    for name, number in (("batch_size", terms.batch_size), ("copies", terms.copies)):
        if number < 1:
            raise ValueError(f"{owner}: {name}= is at least 1")
    deals = terms.traits & {"pads", "drops"}
    for name, given in (("batch_size", terms.batch_size > 1), ("groups", terms.groups)):
        if given and not deals:
            raise ValueError(f"{owner}: {name}= needs the trait 'pads' or 'drops'")
    if "dynamic_batches" in terms.traits and not (deals and terms.batch_size > 1):
        raise ValueError(
            f"{owner}: the trait 'dynamic_batches' needs batch_size=, the most samples of a batch, "
            "and the trait 'pads' or 'drops'"
        )
    if terms.draws is not None and (terms.groups is not None or "endless" in terms.traits):
        raise ValueError(f"{owner}: draws= goes with neither groups= nor the trait 'endless'")
    if terms.copies > 1 and "exact" in terms.traits:
        raise ValueError(f"{owner}: copies={terms.copies} contradicts the trait 'exact'")
    if terms.copies > 1 and "evaluates" in terms.traits:
        raise ValueError(f"{owner}: copies={terms.copies} contradicts the trait 'evaluates'")
    return terms
