"""Names of dispatched reductions: those of this torch, and an object without ``op`` as in 2.8."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_ddp.extensions.comms.block import reduction_of

NAMES = ["SUM", "PRODUCT", "MIN", "MAX"]


class _Reductions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str | None] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func.name() == "c10d::allreduce_":
            self.names.append(reduction_of(args[2]))
        return func(*args, **(kwargs or {}))


def test_names_of_what_torch_dispatches() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        with _Reductions() as seen:
            for name in NAMES:
                dist.all_reduce(torch.ones(2), op=getattr(dist.ReduceOp, name))
    finally:
        dist.destroy_process_group()
    without = torch.__version__.startswith("2.8.")
    assert seen.names == [None if without else name for name in NAMES]


@pytest.mark.parametrize("reduce_op", [None, object()])
def test_without_a_name(reduce_op: object) -> None:
    assert reduction_of(reduce_op) is None
