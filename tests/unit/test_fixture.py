"""The texts of the ddp fixture about itself, and about what it cannot do."""

from __future__ import annotations

import contextlib
import copy
import threading

import pytest
import torch.distributed as dist

from pytest_ddp.fixture import Ddp
from pytest_ddp.protocol.messages import FixtureOperation


def fixture(device_index: int | None = None) -> Ddp:
    def alone(operation: FixtureOperation, source: int | None, payload: str) -> tuple[str, ...]:
        return (payload,)

    device = "cpu" if device_index is None else "cuda"
    enter_phase = contextlib.nullcontext
    return Ddp(0, 1, 0, "gloo", device, device_index, alone, lambda _: enter_phase())


def test_repr() -> None:
    assert repr(fixture()) == "<ddp rank 0 of 1, gloo, cpu>"
    assert repr(fixture(3)) == "<ddp rank 0 of 1, gloo, cuda:3>"


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "get_rank", "new_group"])
def test_names_of_torch_distributed_are_led_there(name: str) -> None:
    assert callable(getattr(dist, name))
    with pytest.raises(
        AttributeError, match=rf"^ddp has no {name}: call torch.distributed.{name},"
    ):
        getattr(fixture(), name)


@pytest.mark.parametrize("name", ["size", "_reduce", "__deepcopy__", "ProcessGroup_"])
def test_other_names_are_plain_attribute_errors(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"^ddp has no {name}$"):
        getattr(fixture(), name)
    assert not hasattr(fixture(), name)


def test_an_object_half_made_has_no_endless_attribute() -> None:
    assert isinstance(copy.copy(fixture()), Ddp)


class _OfItsOwn:
    def __reduce__(self) -> str:
        raise NotImplementedError("a handle stays here")


@pytest.mark.parametrize(
    ("value", "kind"),
    [(lambda: 1, "function"), (threading.Lock(), "lock"), (_OfItsOwn(), "_OfItsOwn")],
)
@pytest.mark.parametrize("operation", ["gather", "broadcast"])
def test_what_cannot_be_pickled_is_named(operation: str, value: object, kind: str) -> None:
    kind = f"an object of type {kind}"
    words = rf"^ddp.{operation}: {kind} cannot be pickled:\n.*\nPass data: tensors, numbers"
    with pytest.raises(TypeError, match=words):
        getattr(fixture(), operation)(value)


def test_types_are_those_of_the_values() -> None:
    ddp = fixture()
    sizes: list[int] = ddp.gather(3)
    name: str = ddp.broadcast("a" if ddp.rank == 0 else None)
    received: object = ddp.broadcast()
    assert (sizes, name, received) == ([3], "a", None)
