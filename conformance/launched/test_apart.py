"""The subjects that a process with another hash seed can make, whatever their functions are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from ddp_conformance import Case, Sampler, Subject
from ddp_conformance.framework.registry import all_checks, remarked
from ddp_conformance.launched.start.apart import NOT_IMPORTED, OfFunctions, OfItsModule, Part
from ddp_conformance.launched.start.kept_servers import in_process_of

UNEVEN = frozenset({"uneven"})


def shards(case: Case, names: Callable[[int], list[str]]) -> list[int]:
    return [int(name) for name in names(case.size)[case.rank :: case.world_size]]


def in_order_of_a_set(size: int) -> list[str]:
    return list({str(index) for index in range(size)})


def shuffled_when_imported() -> Callable[[Case], list[int]]:
    """A function whose closure is another one in each process that imports it."""
    order = in_order_of_a_set(64)
    return lambda case: shards(case, lambda size: [name for name in order if int(name) < size])


@dataclass(frozen=True)
class Shards:
    """A factory that is an object."""

    names: Callable[[int], list[str]]

    def __call__(self, case: Case) -> list[int]:
        return shards(case, self.names)

    def made(self, case: Case) -> list[int]:
        return self(case)


def by_name(case: Case) -> list[int]:
    return shards(case, in_order_of_a_set)


FACTORIES: dict[str, Callable[..., Any]] = {
    "a lambda": lambda case: shards(case, in_order_of_a_set),
    "a partial": functools.partial(shards, names=in_order_of_a_set),
    "a closure": shuffled_when_imported(),
    "an object": Shards(in_order_of_a_set),
    "a method of an object": Shards(in_order_of_a_set).made,
}
BY_NAME = Sampler(by_name, UNEVEN)
SUBJECTS = [Sampler(factory, UNEVEN, "one of several") for factory in FACTORIES.values()]


def deliver(part: Part, case: Case) -> list[int]:
    subject = part.make()
    return list(subject.make(case))


@pytest.mark.ddp(world_size=1)
@pytest.mark.parametrize("subject", SUBJECTS, ids=list(FACTORIES))
def test_a_subject_is_the_one_that_its_module_makes(subject: Subject, case: Case) -> None:
    part = Part.of(subject)
    assert part is not None
    assert isinstance(part.source, OfItsModule)
    here, *there = (
        list(subject.make(case)),
        *(in_process_of(seed, functools.partial(deliver, part, case)) for seed in (0, 1)),
    )
    assert sorted(here) == sorted(there[0]) == sorted(there[1])
    assert there[0] != there[1]


@pytest.fixture
def case(tmp_path: Any) -> Case:
    return Case(32, 0, 1, tmp_path)


def test_functions_with_names_need_no_module_of_the_subject() -> None:
    part, made_here = Part.of(BY_NAME), Part.of(Sampler(by_name, UNEVEN))
    assert part == made_here
    assert part is not None
    assert isinstance(part.source, OfFunctions)


@pytest.mark.ddp(world_size=2)
def test_a_subject_that_is_made_in_a_test_is_remarked() -> None:
    (check,) = [check for check in all_checks() if check.id == "SMP-01"]
    check(Sampler(lambda case: shards(case, in_order_of_a_set), UNEVEN, "made in a test"))
    assert remarked() == f"hash seed shared: {NOT_IMPORTED}"
