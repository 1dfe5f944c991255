"""Runs that are made once, and searches that end with the first find."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp_conformance import Case, Sampler
from ddp_conformance.framework.groups import GroupOfTries
from ddp_conformance.framework.history import Record, Run
from ddp_conformance.framework.recent import KEPT, Recent
from ddp_conformance.framework.recording import (
    Observe,
    cases_of,
    find_first,
    on_all,
    record,
    record_once,
)
from ddp_conformance.framework.verdict import UndecidedError, Violation
from ddp_conformance.sampling.history import Sample
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from conformance.simulated_ranks import SimulatedRanks, on_ranks
from pytest_ddp import Ddp


def counting(seen: list[int]) -> Observe:
    """Notes the size of each case that it observes."""

    def observe(subject: Sampler, case: Case) -> Iterator[Record]:
        seen.append(case.size)
        yield Sample(case.rank, 0, 0, case.size, None)

    return observe


def delivered(run: Run) -> tuple[Violation, ...]:
    """A violation for the run of size 2."""
    return (Violation("two"),) if run.case.size == 2 else ()


def test_the_first_find_ends_the_search() -> None:
    seen: list[int] = []
    cases = cases_of(SimulatedRanks.alone(), (1, 2, 3))
    found = find_first(Sampler(len), SimulatedRanks.alone(), cases, counting(seen), delivered)
    assert [violation.case for violation in found] == ["size 2"]
    assert seen == [1, 2]


def recorder(subject: Sampler, seen: list[int], way: str) -> Callable[[SimulatedRanks], object]:
    return lambda ranks: record_once(subject, ranks, cases_of(ranks, (5,)), counting(seen), way)


def test_equal_runs_are_made_once() -> None:
    subject, seen = Sampler(len), list[int]()
    first = on_ranks(2, recorder(subject, seen, "one"))
    assert on_ranks(2, recorder(subject, seen, "one")) == first
    assert seen == [5, 5]
    on_ranks(2, recorder(subject, seen, "another"))
    on_ranks(2, recorder(Sampler(len), seen, "one"))
    on_ranks(1, recorder(subject, seen, "one"))
    assert len(seen) == 7


def test_a_rank_that_is_new_has_the_others_run_again() -> None:
    subject, seen = Sampler(len), list[int]()
    on_ranks(1, recorder(subject, seen, "one"))
    remembered = len(seen)

    def body(ranks: SimulatedRanks) -> object:
        known = subject if ranks.rank == 0 else Sampler(len)
        return recorder(known, seen, "one")(ranks)

    on_ranks(2, recorder(subject, seen, "one"))
    on_ranks(2, body)
    assert len(seen) == remembered + 4


def test_the_runs_that_were_asked_for_last_are_remembered() -> None:
    recent: Recent[int, str] = Recent()
    for key in range(KEPT):
        recent[key] = str(key)
    assert recent.get(0) == "0"
    recent[KEPT] = "one more"
    assert (recent.get(0), recent.get(1), recent.get(2)) == ("0", None, "2")


@pytest.mark.parametrize("bad", [0, 2])
def test_a_rank_that_raises_between_exchanges_leaves_the_others_in_step(bad: int) -> None:
    """The rank goes on to the exchange of the records, which the others may not take for another
    one."""

    def body(ranks: SimulatedRanks) -> str:
        def act() -> None:
            if ranks.rank == bad:
                raise OSError("disk is full")

        def observe(subject: Sampler, case: Case) -> Iterator[Record]:
            on_all(ranks, act)
            yield Sample(*ranks.gather(0))

        with pytest.raises(UndecidedError) as caught:
            record(Sampler(len), ranks, cases_of(ranks, (1,)), observe)
        ranks.gather(None)
        return str(caught.value)

    texts = on_ranks(3, body)
    assert len(set(texts)) == 1
    assert f"rank {bad}: OSError: disk is full" in texts[0]
    assert texts[0].count("rank ") == 1


@dataclass(frozen=True)
class NotingRanks(SimulatedRanks):
    """A rank that notes what is being handled at each exchange."""

    handled: list[str] = field(default_factory=list)

    def gather(self, obj: Any) -> list[Any]:
        self.handled.append(repr(sys.exc_info()[1]))
        return super().gather(obj)


@pytest.mark.parametrize("act_on_all", [True, False])
def test_an_exception_is_being_handled_when_its_rank_waits_for_the_others(
    act_on_all: bool,
) -> None:
    """So that the proof of a hang names it."""
    ranks = NotingRanks(0, 1, SimulatedRanks.alone().meeting)

    def act() -> None:
        raise OSError("disk is full")

    def observe(subject: Sampler, case: Case) -> Iterator[Record]:
        if act_on_all:
            on_all(ranks, act)
        act()
        yield Sample(*ranks.gather(0))

    with pytest.raises(UndecidedError):
        record(Sampler(len), ranks, cases_of(ranks, (1,)), observe)
    waits = [each for each in ranks.handled if each != "None"]
    assert waits == ["OSError('disk is full')"] * (2 if act_on_all else 1)


@pytest.mark.ddp(world_size=2)
@pytest.mark.parametrize("act_on_all", [True, False])
def test_a_rank_that_ends_its_group_and_raises_lets_its_peer_go(ddp: Ddp, act_on_all: bool) -> None:
    """The peer waits until nothing holds the group, also not the frames of the exception."""

    def act() -> None:
        model = DistributedDataParallel(nn.Linear(1, 1))
        if ddp.rank == 1:
            try:
                raise KeyError("label")
            except KeyError as error:
                dist.destroy_process_group()
                raise OSError(f"no {type(model)}") from error
        dist.barrier()

    def observe(subject: Sampler, case: Case) -> Iterator[Record]:
        yield Sample(case.rank, 0, 0, 0, on_all(ddp, act) if act_on_all else act())

    with pytest.raises(UndecidedError) as caught:
        record(Sampler(len), ddp, cases_of(ddp, (1,)), observe)
    assert "rank 0: RuntimeError" in str(caught.value)
    assert "rank 1: OSError" in str(caught.value)


def end_on_the_first(rank: int) -> None:
    if rank == 0:
        dist.destroy_process_group()


def replace(rank: int) -> None:
    """Replace the group by a group of this rank alone."""
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def end_after_a_subgroup(rank: int) -> None:
    dist.new_group([rank], use_local_synchronization=True)
    dist.destroy_process_group()


@pytest.mark.ddp(world_size=2)
def test_each_try_has_a_whole_group(ddp: Ddp) -> None:
    group = GroupOfTries(ddp)
    seen = []
    for end in (lambda rank: None, end_on_the_first, replace, end_after_a_subgroup):
        end(ddp.rank)
        group.begin_try()
        own = torch.tensor(ddp.rank + 1)
        dist.all_reduce(own, group=dist.new_group())
        seen.append((dist.get_backend(), dist.get_world_size(), int(own)))
    dist.destroy_process_group()  # with the groups that are left
    assert seen == [("gloo", 2, 3)] * 4


def test_ranks_without_a_group_get_none() -> None:
    group = GroupOfTries(SimulatedRanks.alone())
    group.begin_try()
    assert group.is_whole()
    assert not dist.is_initialized()
