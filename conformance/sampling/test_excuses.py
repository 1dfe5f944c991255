"""What would excuse a sampler is named, of those that are legal by another name and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from typing import Any

import pytest
import torch
from ddp_conformance import Case, Loader, Sampler
from ddp_conformance.framework.registry import checks_for
from ddp_conformance.framework.verdict import GuaranteeError
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, WeightedRandomSampler


def padding(case: Case) -> DistributedSampler[object]:
    return DistributedSampler(case.dataset, case.world_size, case.rank, shuffle=False)


def dropping(case: Case) -> DistributedSampler[object]:
    return DistributedSampler(case.dataset, case.world_size, case.rank, drop_last=True)


def dropping_batches(case: Case) -> DataLoader[object]:
    return DataLoader(case.dataset, 4, sampler=padding(case), drop_last=True)


def whole_batches(case: Case) -> BatchSampler:
    return BatchSampler(range(case.rank, case.size, case.world_size), 3, drop_last=True)


def whole_rounds(case: Case) -> BatchSampler:
    """Batches of three, filled up from the beginning until each rank has as many."""
    step = 3 * case.world_size
    indices = [index % case.size for index in range(-(-case.size // step) * step)]
    return BatchSampler(indices[case.rank :: case.world_size], 3, drop_last=False)


def drawn(case: Case) -> list[int]:
    generator = torch.Generator().manual_seed(3)
    weights = [1.0] * case.size
    return list(WeightedRandomSampler(weights, case.size, generator=generator))[
        case.rank :: case.world_size
    ]


def augmented(case: Case) -> list[int]:
    """Three copies of each sample, dealt out to the ranks in turn."""
    copies = [index for index in range(case.size) for _ in range(3)]
    return copies[case.rank :: case.world_size]


def without_end(case: Case) -> Iterator[int]:
    return islice(cycle(range(case.size)), case.rank, None, case.world_size)


def shuffled_apart(case: Case) -> list[int]:
    generator = torch.Generator().manual_seed(case.rank)
    order = torch.randperm(case.size, generator=generator).tolist()
    return order[case.rank :: case.world_size]


def everything(case: Case) -> range:
    return range(case.size)


def loses_the_last(case: Case) -> range:
    return range(case.rank, case.size - 1, case.world_size)


def first_twice(case: Case) -> list[int]:
    """The first sample in place of the second."""
    own = list(range(case.rank, case.size, case.world_size))
    return [0 if index == 1 else index for index in own]


def first_of_two(case: Case) -> list[int]:
    """Each rank's samples, of which the first comes twice, and the last never."""
    own = list(range(case.rank, case.size, case.world_size))
    return [*own[:1], *own[:-1]]


EXCUSED = {
    "Sampler(..., traits={'pads'})": Sampler(padding),
    "Sampler(..., traits={'drops'})": Sampler(dropping),
    "Sampler(..., traits={'drops', 'uneven'}, batch_size=3)": Sampler(
        whole_batches, {"exact", "uneven"}
    ),
    "Loader(..., traits={'drops', 'pads'}, batch_size=4)": Loader(dropping_batches, {"pads"}),
    "Sampler(..., traits={'pads'}, batch_size=3)": Sampler(whole_rounds, {"drops"}),
    "Sampler(..., traits={'replacement', 'uneven'})": Sampler(drawn, {"uneven", "evaluates"}),
    "Sampler(..., traits={'uneven'}, copies=3)": Sampler(augmented, {"uneven"}),
    "Sampler(..., traits={'endless'})": Sampler(without_end),
}

FAULTS = (shuffled_apart, everything, loses_the_last, first_twice, first_of_two)


def failure(subject: Sampler | Loader) -> str:
    (check,) = [check for check in checks_for(subject) if check.id == "SMP-01"]
    with pytest.raises(GuaranteeError) as caught:
        check(subject)
    return str(caught.value)


@pytest.mark.ddp(world_size=2)
@pytest.mark.parametrize("declaration", EXCUSED)
def test_what_would_be_legal_is_named(declaration: str) -> None:
    lines = failure(EXCUSED[declaration]).splitlines()
    assert [line for line in lines if "legal" in line] == [f"  legal if declared: {declaration}"]


@pytest.mark.ddp(world_size=[2, 3])
@pytest.mark.parametrize("factory", FAULTS)
@pytest.mark.parametrize("traits", [(), ("pads",)])
def test_a_fault_has_no_other_name(factory: Callable[[Case], Any], traits: Sequence[str]) -> None:
    assert "legal" not in failure(Sampler(factory, frozenset(traits)))
