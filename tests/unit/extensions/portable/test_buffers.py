"""Buffers in flight, without any process: operations are made by hand."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from pytest_ddp.extensions.comms.stack import Origin
from pytest_ddp.extensions.portable.buffers import Buffers, Touch
from pytest_ddp.extensions.portable.issued import Group, IssuedOperation
from pytest_ddp.extensions.portable.touches import TouchMode
from pytest_ddp.extensions.portable.unspecified import Unspecified
from pytest_ddp.rank.operations.operation import Given
from pytest_ddp.rank.operations.table import BY_OPERATOR
from pytest_ddp.system.stdlib import threading


class Rank:
    """Issues operations on gloo's part, which never ends here."""

    def __init__(self) -> None:
        self.touches: list[Touch] = []
        self.buffers = Buffers(self.touches.append)
        self.mode = TouchMode(self.buffers, Unspecified(), lambda *_: None)

    def issue(
        self, name: str, *args: Any, group: str = "world", root: int | None = None
    ) -> IssuedOperation:
        operation = _operation(name, group, root)
        flight = self.buffers.issued(operation, Given(args, {}, {}))
        assert flight is not None
        self.buffers.received(flight)
        self.mode.follow()
        flight.is_watched = self.mode.is_there
        return operation

    def wait(self, handle: IssuedOperation) -> None:
        self.buffers.waited(handle, "waiting")
        self.mode.follow()

    @property
    def found(self) -> list[tuple[bool, str]]:
        return [(touch.is_write, touch.touched_by) for touch in self.touches]


def _operation(name: str, group: str, root: int | None) -> IssuedOperation:
    members = Group(group, 1, group, (0, 1), 0, True, None)
    thread = threading.get_ident()
    return IssuedOperation(BY_OPERATOR[name], members, "nccl", thread, Origin(), root=root)


@pytest.fixture
def rank() -> Any:
    made = Rank()
    yield made
    made.buffers.end()
    made.mode.follow()
    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_read_of_a_result(rank: Rank) -> None:
    x = torch.ones(4)
    handle = rank.issue("allreduce_", [x])
    x.sum()
    rank.wait(handle)
    assert rank.found == [(False, "aten.sum.default")]


@pytest.mark.parametrize("name", ["send", "_allgather_base_", "_reduce_scatter_base_"])
def test_a_change_of_an_input_that_no_operator_makes(rank: Rank, name: str) -> None:
    x, out = torch.ones(4), torch.zeros(8)
    handle = rank.issue(name, [x]) if name == "send" else rank.issue(name, out, x)
    x.numpy()[3] = 5
    rank.wait(handle)
    assert rank.found == [(True, "")]


def test_a_change_of_an_input_with_gaps(rank: Rank) -> None:
    x = torch.ones(8)
    handle = rank.issue("send", [x[::2]])
    x.numpy()[1::2] = 5
    rank.wait(handle)
    assert rank.found == []
    handle = rank.issue("send", [x[::2]])
    x.numpy()[2] = 5
    rank.wait(handle)
    assert rank.found == [(True, "")]


def test_a_write_from_another_thread(rank: Rank) -> None:
    x = torch.ones(4)
    handle = rank.issue("allreduce_", [x])
    thread = threading.Thread(target=x.zero_)
    thread.start()
    thread.join()
    rank.wait(handle)
    assert rank.found == [(True, "")]


def test_a_version_is_no_evidence_about_a_part(rank: Rank) -> None:
    flat = torch.ones(8)
    handle = rank.issue("allreduce_", [flat[:4]])
    thread = threading.Thread(target=flat[4:].zero_)
    thread.start()
    thread.join()
    rank.wait(handle)
    assert rank.found == []


def test_a_storage_that_is_freed_or_exchanged(rank: Rank) -> None:
    x, y = torch.ones(4), torch.ones(4)
    handles = [rank.issue("send", [x]), rank.issue("allreduce_", [y])]
    x.untyped_storage().resize_(0)
    y.set_(torch.zeros(4).untyped_storage())
    rank.wait(handles[1])
    assert rank.found == []


def test_in_place_as_fsdp_gathers(rank: Rank) -> None:
    full = torch.zeros(8)
    handle = rank.issue("_allgather_base_", full, full[:4])
    full.numpy()[:] = 1  # what the backend does
    rank.wait(handle)
    assert rank.found == []


def test_roots(rank: Rank) -> None:
    x = torch.ones(4)
    handle = rank.issue("broadcast_", [x], root=0)
    x.sum()
    rank.wait(handle)
    assert rank.found == []
    handle = rank.issue("broadcast_", [x], root=1)
    x.sum()
    rank.wait(handle)
    assert rank.found == [(False, "aten.sum.default")]


def test_a_handle_that_is_passed_on(rank: Rank) -> None:
    x = torch.ones(4)
    handle = rank.issue("allreduce_", [x])
    rank.buffers.passed_on(handle)
    x.mul_(2)
    rank.mode.follow()
    assert rank.found == []


def test_what_is_never_waited_for(rank: Rank) -> None:
    x = torch.ones(4)
    rank.issue("send", [x])
    x.numpy()[0] = 2
    rank.buffers.end()
    assert rank.found == [(True, "")]


@pytest.mark.parametrize(
    "harmless",
    [
        lambda x: x.view(2, 2),
        lambda x: x.detach(),
        torch.zeros_like,
        lambda x: x.new_empty(3),
        lambda x: x.split(2),
        lambda x: x[4:].zero_(),
        lambda x: x.untyped_storage(),
        torch.nn.Parameter,
        lambda x: torch.func.vmap(torch.sin)(torch.ones(2, 2)),
        lambda x: torch.ones(2, 2).to_sparse().t_(),  # has no storage
        lambda x: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).zero_(),  # no strides
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_harmless_operators(rank: Rank, harmless: Any) -> None:
    x = torch.ones(4)
    handle = rank.issue("allreduce_", [x])
    harmless(x)
    rank.wait(handle)
    assert rank.found == []


def test_a_mode_of_the_program_stays_on_the_stack(rank: Rank) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    x = torch.ones(4, 4)
    with FlopCounterMode(display=False):
        handle = rank.issue("allreduce_", [x])
    with FlopCounterMode(display=False) as counter:
        rank.wait(handle)
        x @ x
    assert counter.get_total_flops() == 128


@dataclass(eq=False)
class Expected:
    """An operation in flight, as the page describes it."""

    handle: IssuedOperation
    group: str
    places: set[int]
    is_written: bool
    is_found: bool = field(default=False)

    def meets(self, places: set[int], *, is_write: bool) -> bool:
        return bool(self.places & places) and (is_write or self.is_written)


def test_random_programs_are_judged_as_the_page_describes(rank: Rank) -> None:
    """Operations of two groups on slices of one buffer, reads, writes and waits, in any order."""
    for seed in range(150):
        _random_program(rank, random.Random(seed))
        rank.buffers.end()
        rank.mode.follow()
        rank.touches.clear()


def _random_program(rank: Rank, chance: random.Random) -> None:
    buffer = torch.ones(12)
    flights: list[Expected] = []
    expected: list[IssuedOperation] = []

    def found(flight: Expected) -> None:
        if not flight.is_found:
            flight.is_found = True
            expected.append(flight.handle)

    def land(group: str, last: Expected) -> None:
        ended = flights[: flights.index(last) + 1]
        flights[:] = [one for one in flights if one.group != group or one not in ended]

    for _ in range(12):
        start = chance.randrange(12)
        end = chance.randint(start + 1, 12)
        part, places = buffer[start:end], set(range(start, end))
        what = chance.choice(["issue", "issue", "touch", "wait"])
        if what == "issue":
            is_write, group = chance.random() < 0.5, chance.choice(["world", "dp"])
            met = [one for one in flights if one.meets(places, is_write=is_write)]
            for one in met:
                if one.group != group:
                    found(one)
            same = [one for one in met if one.group == group]
            if same:
                land(group, same[-1])
            handle = rank.issue("allreduce_" if is_write else "send", [part], group=group)
            flights.append(Expected(handle, group, places, is_write))
        elif what == "touch":
            is_write = chance.random() < 0.5
            for one in flights:
                if one.meets(places, is_write=is_write):
                    found(one)
            part.add_(1) if is_write else part.sum()
        elif flights:
            one = chance.choice(flights)
            rank.wait(one.handle)
            land(one.group, one)
    assert [touch.operation for touch in rank.touches] == expected
