"""Groups that torch makes for a mesh go with their test: no warning, and the ranks stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.recorded import Run, run_recorded
from tests.acceptance.suite import Suite

MESHES = """
    import pytest
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    pytestmark = pytest.mark.ddp(world_size=4)

    def make_mesh():
        return dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))

    def use_tensor(mesh):
        numbers = torch.arange(16.0).reshape(4, 4)
        tensor = distribute_tensor(numbers, mesh, [Replicate(), Shard(0)])
        total = (tensor + 1).sum()
        assert total.device_mesh is mesh
        assert total.full_tensor() == 136

    def train(model):
        model(torch.ones(4, 4)).sum().backward()

    @torch.compile(backend="eager")
    def doubled(tensor):
        return (tensor * 2).redistribute(placements=[Replicate(), Replicate()]).to_local()

    def compile_with(mesh):
        numbers = torch.arange(16.0).reshape(4, 4)
        tensor = distribute_tensor(numbers, mesh, [Replicate(), Shard(0)])
        assert torch.equal(doubled(tensor), 2 * numbers)

    def test_first_mesh(ddp):
        use_tensor(make_mesh())

    def test_mesh_after_other_groups(ddp):
        own = dist.new_group([0, 1, 2, 3])
        use_tensor(make_mesh())
        dist.destroy_process_group(own)

    def test_mesh_again(ddp):
        use_tensor(make_mesh())

    def test_mesh_whose_groups_are_destroyed(ddp):
        mesh = make_mesh()
        use_tensor(mesh)
        for group in mesh.get_all_groups():
            dist.destroy_process_group(group)

    def test_mesh_on_the_same_group(ddp):
        use_tensor(make_mesh())

    def test_hybrid(ddp):
        train(fully_shard(torch.nn.Linear(4, 4), mesh=make_mesh()))

    def test_after_hybrid(ddp):
        assert len(dist.distributed_c10d._world.pg_map) == 1
        dist.all_reduce(torch.ones(1))

    @pytest.fixture(scope="class")
    def wide():
        return make_mesh()

    class TestWide:
        def test_fixture_first(self, ddp, wide):
            use_tensor(wide)

        def test_fixture_last(self, ddp, wide):
            use_tensor(wide)

    def test_compiled(ddp):
        compile_with(make_mesh())

    def test_compiled_after_other_groups(ddp):
        others = [dist.new_group([0, 1, 2, 3]) for _ in range(3)]
        compile_with(make_mesh())
        for group in others:
            dist.destroy_process_group(group)

    def test_own_group(ddp):
        dist.new_group([0, 1, 2, 3])

    def test_after_own_group(ddp):
        use_tensor(make_mesh())
"""


TESTS = [
    "test_first_mesh",
    "test_mesh_after_other_groups",
    "test_mesh_again",
    "test_mesh_whose_groups_are_destroyed",
    "test_mesh_on_the_same_group",
    "test_hybrid",
    "test_after_hybrid",
    "test_fixture_first",
    "test_fixture_last",
    "test_compiled",
    "test_compiled_after_other_groups",
    "test_own_group",
    "test_after_own_group",
]


@pytest.fixture(scope="module")
def run(new_suite: Callable[[], Suite]) -> Run:
    suite = new_suite()
    suite.write("test_meshes.py", MESHES)
    return run_recorded(suite, "--ddp-timeout=60")


def test_verdicts(run: Run) -> None:
    run.finished.assert_outcomes(passed=13)


def test_ranks_stay(run: Run) -> None:
    kept = {tuple(run.pids(name)) for name in TESTS[: TESTS.index("test_own_group")]}
    assert len(kept) == 1


def test_groups_of_a_mesh_are_not_blamed(run: Run) -> None:
    warned = {name for name in TESTS if run.warnings_about(name)}
    warned |= {name for name in TESTS if run.warnings_about(f"TestWide::{name}")}
    assert warned == {"test_own_group"}


def test_own_group_is_reported_once(run: Run) -> None:
    (warning,) = run.warnings_about("test_own_group")
    assert "left a process group" in warning
    assert "the ranks are replaced" in warning
