"""Values that are unspecified are followed until a program looks at them, without any process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pytest_ddp.extensions.comms.stack import Origin
from pytest_ddp.extensions.portable.buffers import Buffers
from pytest_ddp.extensions.portable.issued import Group, IssuedOperation
from pytest_ddp.extensions.portable.touches import TouchMode
from pytest_ddp.extensions.portable.unspecified import Unspecified
from pytest_ddp.rank.operations.table import BY_OPERATOR
from pytest_ddp.system.stdlib import threading

ones, zeros = torch.ones, torch.zeros
lists: Any = torch


class Rank:
    def __init__(self) -> None:
        self.looks: list[str] = []
        self.unspecified = Unspecified()
        buffers = Buffers(lambda _: None)
        self.mode = TouchMode(buffers, self.unspecified, lambda _, site: self.looks.append(site))

    def leave(self, *tensors: torch.Tensor) -> None:
        group = Group("world", 1, "world", (0, 1), 0, True, None)
        reduce, thread = BY_OPERATOR["reduce_"], threading.get_ident()
        operation = IssuedOperation(reduce, group, "nccl", thread, Origin(), root=1)
        self.unspecified.leave(tensors, operation)
        self.mode.follow()


@pytest.fixture
def rank() -> Iterator[Rank]:
    made = Rank()
    yield made
    made.unspecified.clear()
    made.mode.follow()


def then(*steps: Any) -> Any:
    """The last of some results, for a lambda of several steps."""
    return steps[-1]


def gradient(x: Any) -> Any:
    weight: Any = ones(4, requires_grad=True)
    (weight * x).sum().backward()
    return weight.grad


LOOKS: dict[str, Any] = {
    "number": lambda x: float(x[3]),
    "condition": lambda x: bool((x > 0).all()),
    "comparison": lambda x: torch.equal(x, ones(4)),
    "closeness": lambda x: torch.allclose(x, ones(4)),
    "mean": lambda x: then(x.div_(2), x.mean().item()),
    "copy": lambda x: zeros(4).copy_(x).max().item(),
    "part": lambda x: then(x[:3].zero_(), x.max().item()),
    "out": lambda x: then(out := zeros(4), torch.add(x, 1, out=out), out.sum().item()),
    "concatenated": lambda x: torch.cat([zeros(4), x]).sum().item(),
    "one of a list": lambda x: then(lists._foreach_mul_([zeros(4), x], 2), x.sum().item()),
    "norm of a list": lambda x: lists._foreach_norm([zeros(4), x])[1].item(),
    "gradient": lambda x: gradient(x).sum().item(),
    "inserted": lambda x: then(y := zeros(8), y[2:6].add_(x), y.sum().item()),
    "indices": lambda x: then(y := zeros(4), y.index_put_((torch.tensor([1]),), x[0]), y[1].item()),
    "reshaped": lambda x: x.reshape(2, 2).t().contiguous().sum().item(),
    "resized": lambda x: then(x.unsqueeze_(0), x.sum().item()),
}
SILENT: dict[str, Any] = {
    "computed": lambda x: then(x.div_(2), (x * 3).sum()),
    "shape": lambda x: then(x.numel(), x.shape, torch.zeros_like(x).sum().item()),
    "zero": lambda x: then(x.zero_(), x.sum().item()),
    "copied over": lambda x: then(x.copy_(ones(4)), x.sum().item()),
    "out": lambda x: then(torch.add(ones(4), 1, out=x), x.sum().item()),
    "random": lambda x: then(x.uniform_(), x.sum().item()),
    "by halves": lambda x: then(x[:2].fill_(1), x[2:].fill_(1), x.sum().item()),
    "part": lambda x: then(x[:2].fill_(1), x[:2].sum().item()),
    "masked": lambda x: then(x.masked_fill_(ones(4).bool(), 0), x.sum().item()),
    "neighbour": lambda x: then(y := ones(4), lists._foreach_mul_([y, x], 2), y.sum().item()),
    "others of a list": lambda x: lists._foreach_norm([ones(4), x])[0].item(),
    "list of zeros": lambda x: then(lists._foreach_zero_([x]), x.sum().item()),
    "numpy": lambda x: then(x.numpy().fill(0), x.sum().item()),
    "another": lambda x: ones(4).sum().item(),
    "freed": lambda x: then(y := x * 2, y.set_(), ones(4).sum().item()),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_looks(rank: Rank, look: Any) -> None:
    x = ones(4)
    rank.leave(x)
    look(x)
    assert len(rank.looks) == 1
    assert rank.looks[0].partition(":")[0] == __file__


@pytest.mark.parametrize("use", SILENT.values(), ids=SILENT)
def test_other_uses(rank: Rank, use: Any) -> None:
    x = ones(4)
    rank.leave(x)
    use(x)
    assert rank.looks == []


def test_a_part_of_a_buffer(rank: Rank) -> None:
    flat = ones(8)
    rank.leave(flat[4:])
    flat[:4].sum().item()
    assert rank.looks == []
    flat.sum().item()
    assert len(rank.looks) == 1


@pytest.mark.parametrize(
    "compute",
    [
        lambda flat, y: y.add_(flat),
        lambda flat, y: y.copy_(flat.double()),
        lambda flat, y: y.copy_(flat.t().t() * 2 + 1),
        lambda flat, y: lists._foreach_add_([y], [flat]),
        lambda flat, y: y.add_(flat.mT),  # which element is which is not known
    ],
)
def test_an_element_is_of_the_elements_at_its_place(rank: Rank, compute: Any) -> None:
    flat, y = ones(4, 4), zeros(4, 4)
    rank.leave(flat[2:])
    compute(flat, y)
    y[:2].sum().item()
    assert rank.looks == []
    y[3].sum().item()
    assert len(rank.looks) == (0 if "mT" in compute.__code__.co_names else 1)


def test_memory_that_is_used_again(rank: Rank) -> None:
    for _ in range(50):
        x = ones(1000)
        rank.leave(x)
        del x
        assert ones(1000).sum().item() == 1000
    assert rank.looks == []
    assert rank.mode.is_there
    rank.mode.follow()
    assert not rank.mode.is_there


def test_a_storage_with_other_memory(rank: Rank) -> None:
    x = ones(1000)
    rank.leave(x)
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(1 << 26)  # so large that malloc maps it elsewhere
    x.sum().item()
    assert rank.looks == []
