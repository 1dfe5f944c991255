"""The judge of orders over many epochs on hand-made histories, and the sizes that are tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from ddp_conformance.framework.history import Record
from ddp_conformance.sampling import judge
from ddp_conformance.sampling.sizes import unusual_sizes

from conformance.sampling.test_judge import epoch_of


def orders_of(*orders: Sequence[int]) -> list[Record]:
    """One rank's orders, epoch by epoch."""
    return [record for epoch, order in enumerate(orders) for record in epoch_of([order], epoch)]


def rotated(by: int) -> list[int]:
    return [(index + by) % 32 for index in range(32)]


@pytest.mark.parametrize(
    ("chosen", "witness"),
    [
        (lambda epoch: epoch, None),
        (lambda epoch: min(epoch, 2), "epoch 3: rank 0 has the order of the epoch before again"),
        (lambda epoch: epoch % 2, "epoch 2: rank 0 has the order of 2 epochs before again"),
        (lambda epoch: epoch % 4, "epoch 4: rank 0 has the order of 4 epochs before again"),
        (lambda epoch: epoch % 2 if epoch < 20 else epoch, None),
        (lambda epoch: epoch * epoch // 3 % 2, None),
    ],
)
def test_orders_that_come_again_to_the_end_are_named(
    chosen: Callable[[int], int], witness: str | None
) -> None:
    found = judge.judge_order_returns(orders_of(*(rotated(chosen(e)) for e in range(24))))
    assert [str(violation).removesuffix(", in every epoch on") for violation in found] == (
        [] if witness is None else [witness]
    )


def test_few_samples_have_few_orders() -> None:
    assert judge.judge_order_returns(orders_of(*[[0, 1]] * 24)) == ()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_unusual_sizes_are_odd_large_and_many(world_size: int) -> None:
    sizes = unusual_sizes(world_size)
    assert sizes[0] % (4 * world_size) == 2
    assert max(sizes) > 2**15
    assert len(set(sizes)) == len(sizes) > 2000
    assert min(sizes) > world_size
