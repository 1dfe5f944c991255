"""What real samplers repeat and leave out is what is allowed, counted at many sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain, cycle, islice

import pytest
from ddp_conformance import Loader, Sampler
from ddp_conformance.framework.allowance import Allowance, allowed
from ddp_conformance.framework.registry import checks_for
from ddp_conformance.framework.subjects import Subject
from ddp_conformance.framework.verdict import UndecidedError
from torch.utils.data import BatchSampler, DistributedSampler

from conformance.simulated_ranks import SimulatedRanks

PADS, DROPS = frozenset({"pads"}), frozenset({"drops"})

SITUATIONS = [
    (size, world_size, batch_size)
    for size in range(1, 50)
    for world_size in range(1, 6)
    for batch_size in range(1, 5)
]


def used(size: int, shares: Iterable[Iterable[int]]) -> Allowance:
    """The allowance that these shares make use of."""
    counts = Counter(index for share in shares for index in share)
    return Allowance(counts.total() - len(counts), size - len(counts))


def over_torch(size: int, world_size: int, batch_size: int, *, drop: bool) -> Allowance:
    """``DistributedSampler`` with its tail dropped or not, under ``drop_last=True``."""
    samplers = [
        DistributedSampler(range(size), world_size, rank, shuffle=False, drop_last=drop)
        for rank in range(world_size)
    ]
    return used(size, (chain(*BatchSampler(s, batch_size, drop_last=True)) for s in samplers))


@pytest.mark.parametrize(("drop", "traits"), [(False, PADS | DROPS), (True, DROPS)])
def test_full_batches_over_torchs_sampler_are_allowed(drop: bool, traits: frozenset[str]) -> None:
    unused = 0
    for size, world_size, batch_size in SITUATIONS:
        surplus, missing = over_torch(size, world_size, batch_size, drop=drop)
        allowance = allowed(size, world_size, traits, batch_size)
        assert surplus <= allowance.surplus, (size, world_size, batch_size)
        assert missing <= allowance.missing, (size, world_size, batch_size)
        unused = max(unused, allowance.missing - missing)
    # What torch repeats is at the end, and dropped first: no more than that is left unused.
    assert unused <= (0 if drop else 4)


def test_rounds_of_full_batches_are_allowed() -> None:
    for size, world_size, batch_size in SITUATIONS:
        rounds = -(-size // (world_size * batch_size))
        surplus = rounds * world_size * batch_size - size
        assert allowed(size, world_size, PADS, batch_size) == (surplus, 0)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_full_batches_of_each_worker_are_allowed(workers: int) -> None:
    for size, world_size, batch_size in SITUATIONS:
        shares = [
            range(size)[rank::world_size][worker::workers]
            for rank in range(world_size)
            for worker in range(workers)
        ]
        full = [share[: len(share) // batch_size * batch_size] for share in shares]
        missing = used(size, full).missing
        assert missing <= allowed(size, world_size, DROPS, batch_size, workers).missing


def test_the_batches_that_do_not_come_out_even_are_allowed() -> None:
    for size, world_size, most in SITUATIONS:
        samples, numbers = iter(range(size)), cycle(range(1, most + 1))
        batches = [[first, *islice(samples, next(numbers) - 1)] for first in samples]
        uneven = len(batches) % world_size
        left_out = sum(len(batch) for batch in batches[len(batches) - uneven :])
        assert left_out <= allowed(size, world_size, DROPS | {"dynamic_batches"}, most).missing
        filled = sum(len(batch) for batch in islice(cycle(batches), -len(batches) % world_size))
        assert filled <= allowed(size, world_size, PADS | {"dynamic_batches"}, most).surplus


def test_nothing_declared_allows_nothing() -> None:
    assert allowed(7, 4, frozenset(), 3, 2) == (0, 0)


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        (lambda: Sampler(len, {"exact"}, batch_size=2), "batch_size= needs the trait 'pads' or"),
        (lambda: Loader(len, {"pads", "drops"}), "'drops' and 'pads' together need batch_size="),
        (lambda: Loader(len, {"pads"}, batch_size=0), "batch_size= is at least 1"),
        (
            lambda: Sampler(len, {"pads", "dynamic_batches"}),
            "'dynamic_batches' needs batch_size=, the most samples of a batch",
        ),
        (lambda: Sampler(len, min_size=-1), "min_size=-1: give 0 or more"),
    ],
)
def test_sizes_that_prove_nothing_are_named(subject: Callable[[], Subject], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        subject()


def test_a_batch_size_that_no_batch_has_decides_nothing() -> None:
    subject = Sampler(
        lambda case: [[i] * 2 for i in range(case.size)], DROPS, "pairs", batch_size=4
    )
    check = next(check for check in checks_for(subject) if check.id == "SMP-01")
    with pytest.raises(UndecidedError, match="batch_size=4, but no batch has more than 2"):
        check(subject, SimulatedRanks.alone())
