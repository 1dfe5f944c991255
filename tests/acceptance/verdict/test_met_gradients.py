"""A collective of Python that meets DDP's gradients: where the ranks parted first is shown."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite, flat

SOURCE = """
    import pytest
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    ddp2 = pytest.mark.ddp(world_size=2, timeout=60)


    def model():
        return DistributedDataParallel(torch.nn.Linear(3, 1))


    def step(wrapped):
        wrapped(torch.ones(2, 3)).sum().backward()


    def total(ranks):
        if dist.get_rank() in ranks:
            dist.all_reduce(torch.ones(4))  # as many as the gradient has


    @ddp2
    def test_met(ddp):
        wrapped = model()
        total([0, 1])
        total([0])
        for _ in range(3):
            step(wrapped)
        dist.broadcast(torch.ones(4), 0)


    @ddp2
    def test_swapped(ddp):
        wrapped = model()
        total([0])
        step(wrapped)
        total([1])


    @ddp2
    def test_legal(ddp):
        wrapped = model()
        for _ in range(3):
            step(wrapped)
            if ddp.rank == 0:
                dist.broadcast(torch.ones(4), 0)
            else:
                dist.broadcast(torch.zeros(4), 0)
"""


@pytest.fixture(scope="module")
def finished(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_gradients.py", SOURCE)
    return suite.run(timeout=120)


def test_first_place_is_reported_before_the_last(finished: Finished) -> None:
    text = flat(finished["test_met"].text)
    line = next(n for n, text in enumerate(SOURCE.splitlines(), 1) if "# as many" in text)
    _, found, first = text.partition("the ranks first diverge at collective #")
    assert found
    assert f"rank 0: all_reduce(SUM, 4 x float32) at test_gradients.py:{line}: dist.all_re" in first
    assert "rank 1: all_reduce(4 x float32) issued in C++, as DDP's gradients" in first
    assert text.index("mismatch: ") < text.index(found)


def test_swap_with_a_gradient_is_a_warning(finished: Finished) -> None:
    assert finished["test_swapped"].verdict == "passed"
    output = flat(finished.output)
    assert "test_swapped: collectives #" in output
    assert "comes before what C++ issues on rank 0, and after it on rank 1" in output


def test_gradients_between_collectives_are_legal(finished: Finished) -> None:
    assert finished["test_legal"].verdict == "passed"
    assert "test_legal: collectives" not in flat(finished.output)
