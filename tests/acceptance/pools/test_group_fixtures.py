"""Fixtures wider than a test that belong to a process group go with it, on all ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.recorded import Run, run_recorded
from tests.acceptance.suite import Suite

SOURCE = """
    import os
    import threading
    import time
    from pathlib import Path

    import pytest
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)

    ddp1 = pytest.mark.ddp(world_size=1)
    ddp2 = pytest.mark.ddp(world_size=2)
    ddp3 = pytest.mark.ddp(world_size=3)


    @pytest.fixture(scope="module")
    def model(request):
        up = Path(os.environ["PIDS"], f"{request.node.name} is up in {os.getpid()}")
        up.touch()
        yield DistributedDataParallel(torch.nn.Linear(2, 2))
        dist.barrier()
        up.unlink()


    @pytest.fixture(scope="module")
    def pair():
        return dist.new_group([0, 1])


    def step(ddp, model):
        model.zero_grad()
        (model(torch.ones(1, 2)) * (ddp.rank + 1)).sum().backward()
        mean = (ddp.world_size + 1) / 2
        assert model.module.bias.grad.tolist() == [mean, mean]
"""

DISTURBANCES = {
    "dies": ("@ddp2", "if ddp.rank == 1: os._exit(3)", "failed"),
    "raises": ("@ddp2", "assert ddp.rank == 0; dist.barrier()", "failed"),
    "parts": ("@ddp2", "if ddp.rank == 0: dist.barrier(async_op=True)", "failed"),
    "leaves_a_thread": (
        "@ddp2",
        "if ddp.rank == 1: threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        "passed",
    ),
    "destroys": ("@ddp2", "dist.destroy_process_group()", "passed"),
    "has_one_rank": ("@ddp1", "dist.barrier()", "passed"),
    "has_three_ranks": ("@ddp3", "dist.barrier()", "passed"),
    "has_no_group": ("@pytest.mark.ddp(world_size=2, init=False)", "pass", "passed"),
    "is_isolated": ("@pytest.mark.ddp(world_size=2, isolate=True)", "pass", "passed"),
}
"""The mark, the body and the verdict of each test."""

DISTURBED = """
    @ddp2
    def test_before_{name}(ddp, model):
        step(ddp, model)


    {mark}
    def test_{name}(ddp):
        {body}


    @ddp2
    def test_after_{name}(ddp, model):
        step(ddp, model)


    @ddp2
    def test_last_{name}(ddp, model):
        step(ddp, model)
"""

HELD = """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard


    @pytest.fixture(scope="module")
    def sharded():
        mesh = init_device_mesh("cpu", (2,))
        return fully_shard(torch.nn.Linear(2, 2), mesh=mesh)


    @ddp2
    def test_before_held(ddp, sharded):
        sharded(torch.ones(1, 2)).sum().backward()


    @ddp2
    def test_held(ddp, sharded):
        if ddp.rank == 1:
            os._exit(3)


    @ddp2
    def test_after_held(ddp, sharded):
        sharded(torch.ones(1, 2)).sum().backward()
"""

KEPT = """
    @pytest.mark.parametrize("time", ["first", "second"])
    @ddp3
    def test_group_of_some(ddp, pair, time):
        if ddp.rank < 2:
            dist.broadcast(torch.ones(1), src=0, group=pair)


    @pytest.mark.parametrize("time", ["first", "second"])
    @ddp2
    def test_lines_of_their_own(ddp, model, time):
        if ddp.rank == 0:
            dist.broadcast(torch.ones(1), src=0)
        else:
            dist.broadcast(torch.zeros(1), src=0)
        step(ddp, model)
"""

SIZES = """
    @pytest.mark.ddp(world_size=[1, 2, 3])
    @pytest.mark.parametrize("time", ["first", "second"])
    def test_of_every_size(ddp, model, time):
        step(ddp, model)
"""


@pytest.fixture(scope="module")
def run(new_suite: Callable[[], Suite]) -> Run:
    suite = new_suite()
    for name, (mark, body, _) in DISTURBANCES.items():
        source = SOURCE + DISTURBED.format(name=name, mark=mark, body=body)
        suite.write(f"test_{name}.py", source)
    suite.write("test_held.py", SOURCE + HELD)
    suite.write("test_kept.py", SOURCE + KEPT)
    suite.write("test_sizes.py", SOURCE + SIZES)
    return run_recorded(suite)


@pytest.mark.parametrize("name", DISTURBANCES)
def test_disturbance(run: Run, name: str) -> None:
    """The test between those with the fixture is what it is meant to be."""
    assert run.finished[f"test_{name}"].verdict == DISTURBANCES[name][-1]


@pytest.mark.parametrize("name", DISTURBANCES)
@pytest.mark.parametrize("when", ["before", "after", "last"])
def test_model_works_whatever_came_between(run: Run, name: str, when: str) -> None:
    assert run.finished[f"test_{when}_{name}"].verdict == "passed"


@pytest.mark.parametrize("name", DISTURBANCES)
def test_fixture_stays_once_it_is_up_again(run: Run, name: str) -> None:
    assert run.pids(f"test_after_{name}") == run.pids(f"test_last_{name}")


def test_model_that_only_held_the_group_works_as_well(run: Run) -> None:
    """The set-up of this model communicates nothing."""
    verdicts = [run.finished[f"test_{name}"].verdict for name in ("before_held", "after_held")]
    assert verdicts == ["passed", "passed"]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("time", ["first", "second"])
def test_model_of_every_world_size(run: Run, time: str, size: int) -> None:
    results = run.finished.results.items()
    (result,) = [r for name, r in results if time in name and f"ws{size}" in name]
    assert result.verdict == "passed"


@pytest.mark.parametrize("name", ["group_of_some", "lines_of_their_own"])
def test_group_is_kept(run: Run, name: str) -> None:
    """A group is kept although some ranks are not in it, or ask for it from another line."""
    first, second = f"test_{name}[first]", f"test_{name}[second]"
    assert [run.finished[test].verdict for test in (first, second)] == ["passed", "passed"]
    assert run.pids(first) == run.pids(second)


@pytest.mark.parametrize(
    "name", ["has_one_rank", "has_three_ranks", "has_no_group", "is_isolated", "sizes", "kept"]
)
def test_model_ends_on_all_ranks_together(run: Run, name: str) -> None:
    """The teardown of the model has a barrier."""
    assert not list(run.directory.glob(f"test_{name}.py is up in *"))
