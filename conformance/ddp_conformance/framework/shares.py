"""What ranks delivered together, for parts that need not deliver each sample exactly once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import TypeVar

from ddp_conformance.framework.allowance import Allowance
from ddp_conformance.framework.verdict import ranks_in_words

K = TypeVar("K", bound=Hashable)

DISTINCT = 8
"""The least number of different samples with which equal draws are no coincidence, however
skewed."""


def equal_draws(shares: Mapping[K, Sequence[int]]) -> list[tuple[K, K]]:
    """Pairs of shares with the same samples in any order, or where one begins with the other: a
    draw from the same seed, cut off later. Shares of few different samples are not judged."""
    telling = {key: share for key, share in shares.items() if len(set(share)) >= DISTINCT}
    return [
        (one, other)
        for one, other in combinations(telling, 2)
        if _equal(*sorted((telling[one], telling[other]), key=len))
    ]


def _equal(short: Sequence[int], long: Sequence[int]) -> bool:
    return tuple(long[: len(short)]) == tuple(short) or Counter(long) == Counter(short)


def uneven_passes(
    batches: Mapping[int, Sequence[Sequence[int]]], size: int, copies: int, allowance: Allowance
) -> str:
    """What is wrong with the ranks' batches of a stream of passes over ``size`` samples; or empty.

    At each step the ranks together have had whole passes, each with every sample ``copies``
    times, and a part of the next one; ranks may end at different passes. ``allowance`` is that of
    a pass. The counts are checked after each pass, as they are even at the end when each of two
    ranks went through all samples on its own.
    """
    for shares in _prefixes(batches, -(-copies * size // len(batches))):
        owners: defaultdict[int, list[int]] = defaultdict(list)
        for rank, share in shares.items():
            for index in share:
                owners[index].append(rank)
        behind, ahead = (len(shares) * f(map(len, shares.values())) for f in (min, max))
        least = copies * (behind // (copies * size + allowance.surplus))
        passes = -(-ahead // max(1, copies * size - allowance.missing))
        more = {i: len(by) - copies * passes for i, by in owners.items()}
        less = {i: least - len(owners[i]) for i in range(size)}
        for differences, allowed in ((more, allowance.surplus), (less, allowance.missing)):
            wrong = {i: number for i, number in sorted(differences.items()) if number > 0}
            if sum(wrong.values()) > allowed * passes:
                first = next(iter(wrong))
                by = ranks_in_words(owners[first]) if owners[first] else "no rank"
                often = "often" if differences is more else "rarely"
                return (
                    f"{len(wrong)} of {size} samples come too {often} in "
                    f"{sum(map(len, shares.values()))} deliveries; index {first} by {by}"
                )
    return ""


def _prefixes(
    batches: Mapping[int, Sequence[Sequence[int]]], share: int
) -> Iterator[dict[int, list[int]]]:
    """The ranks' samples each time that all have had another ``share``, and at the end."""
    had: dict[int, list[int]] = {rank: [] for rank in batches}
    needed = share
    for step in range(min(map(len, batches.values()))):
        for rank, own in had.items():
            own += batches[rank][step]
        least = min(map(len, had.values()))
        if least >= needed:
            needed = least - least % share + share
            yield had
    yield {rank: list(chain.from_iterable(own)) for rank, own in batches.items()}
