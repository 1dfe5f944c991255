"""The mark, its arguments, the ``ddp`` fixture and the surroundings that a rank is given."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.suite import Finished, Suite

FORMS = """
    import os

    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=2)

    def test_module_mark(ddp):
        assert ddp.world_size == dist.get_world_size() == 2

    @pytest.mark.ddp(world_size=1)
    def test_function_mark(ddp):
        assert ddp.world_size == dist.get_world_size() == 1

    @pytest.mark.ddp(world_size=3)
    class TestClassMark:
        def test_class_mark(self, ddp):
            assert ddp.world_size == dist.get_world_size() == 3

        @pytest.mark.ddp(world_size=1)
        def test_in_class(self, ddp):
            assert ddp.world_size == 1

        @pytest.mark.ddp(env={"ONLY_HERE": "yes"})
        def test_arguments_add_up(self, ddp):
            assert ddp.world_size == 3
            assert os.environ["ONLY_HERE"] == "yes"

    @pytest.mark.ddp(world_size=[1, 2])
    def test_list(ddp):
        assert ddp.world_size == dist.get_world_size() == len(ddp.gather(None))

    @pytest.mark.ddp(world_size=[1, 2])
    @pytest.mark.parametrize("letter", ["a", "b"])
    def test_list_and_parameters(ddp, letter):
        assert ddp.world_size in (1, 2) and letter in "ab"

    @pytest.mark.ddp(world_size=[1, 2])
    class TestListOnClass:
        def test_method(self, ddp):
            assert ddp.world_size == dist.get_world_size()

    @pytest.mark.parametrize("n", [1, pytest.param(3, marks=pytest.mark.ddp(world_size=3))])
    def test_mark_on_a_parameter(ddp, n):
        assert ddp.world_size == (3 if n == 3 else 2)

    @pytest.mark.ddp(env={"EXTRA": "1", "OTHER": "two words"})
    def test_env(ddp):
        assert os.environ["EXTRA"] == "1"
        assert os.environ["OTHER"] == "two words"

    def test_env_is_gone():
        assert "EXTRA" not in os.environ

    @pytest.mark.ddp(init=False)
    def test_own_init_twice(ddp):
        for _ in range(2):
            assert not dist.is_initialized()
            dist.init_process_group()
            assert (dist.get_rank(), dist.get_world_size()) == (ddp.rank, 2)
            total = torch.tensor(float(ddp.rank + 1))
            dist.all_reduce(total)
            assert total.item() == 3.0
            dist.destroy_process_group()

    @pytest.mark.ddp(init=False, world_size=3)
    def test_own_init_again(ddp):
        dist.init_process_group("gloo", init_method="env://")
        assert dist.get_world_size() == 3
        dist.barrier()
        dist.destroy_process_group()

    def test_group_is_back(ddp):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2.0

    @pytest.mark.ddp(init=False)
    def test_no_group_at_all(ddp):
        assert not dist.is_initialized()
        assert ddp.gather(ddp.rank) == [0, 1]

    def test_no_fixture_asked_for():
        assert dist.get_world_size() == 2
"""

FIXTURE = """
    import os
    from dataclasses import dataclass

    import pytest
    import torch
    import torch.distributed as dist
    from pytest_ddp import Ddp

    pytestmark = pytest.mark.ddp(world_size=3)

    @dataclass
    class Point:
        x: int
        tensor: torch.Tensor

    def test_attributes(ddp: Ddp):
        assert ddp.rank == dist.get_rank() == ddp.local_rank
        assert ddp.world_size == 3
        assert ddp.backend == "gloo" == dist.get_backend()
        assert ddp.device == torch.device("cpu")
        assert isinstance(ddp, Ddp)

    def test_gather(ddp):
        assert ddp.gather({"rank": ddp.rank}) == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
        points = ddp.gather(Point(ddp.rank, torch.full((2,), float(ddp.rank))))
        assert [point.x for point in points] == [0, 1, 2]
        assert points[2].tensor.tolist() == [2.0, 2.0]

    def test_large_gather(ddp):
        rows = ddp.gather(torch.full((2**20,), float(ddp.rank)))
        assert [row.sum().item() for row in rows] == [0.0, 2.0**20, 2.0**21]

    def test_broadcast(ddp):
        assert ddp.broadcast("zero" if ddp.rank == 0 else None) == "zero"
        assert ddp.broadcast(ddp.rank * 10, source=2) == 20

    def test_wrong_source(ddp):
        with pytest.raises(ValueError, match="source=3"):
            ddp.broadcast("x", source=3)

    def test_barrier(ddp, tmp_path):
        (tmp_path / str(ddp.rank)).touch()
        ddp.barrier()
        assert len(list(tmp_path.iterdir())) == 3

    def test_side_channel_without_the_group(ddp):
        dist.destroy_process_group()
        assert ddp.gather(ddp.rank) == [0, 1, 2]

    def test_missing_rank_is_named(ddp):
        if ddp.rank != 1:
            ddp.gather(ddp.rank)

    def test_torchrun_environment(ddp):
        want = {
            "RANK": ddp.rank, "LOCAL_RANK": ddp.rank, "WORLD_SIZE": 3, "LOCAL_WORLD_SIZE": 3,
            "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1, "ROLE_RANK": ddp.rank, "ROLE_WORLD_SIZE": 3,
        }
        assert {name: int(os.environ[name]) for name in want} == want
        assert os.environ["MASTER_ADDR"] == "127.0.0.1"
        assert 0 < int(os.environ["MASTER_PORT"]) < 65536
        assert len(set(ddp.gather(os.environ["MASTER_PORT"]))) == 1
        assert len(set(ddp.gather(os.environ["TORCHELASTIC_RUN_ID"]))) == 1
        assert dist.is_torchelastic_launched()
"""

SEEDS = """
    import json
    import os
    import random
    from pathlib import Path

    import numpy
    import pytest
    import torch

    def draw(ddp, name):
        drawn = [random.random(), float(numpy.random.rand()), torch.rand(1).item()]
        file = Path(os.environ["DRAWS"], f"{name} {ddp.rank}")
        file.write_text(json.dumps(drawn))

    @pytest.mark.ddp(world_size=2)
    def test_default(ddp):
        draw(ddp, "default")

    @pytest.mark.ddp(world_size=2)
    def test_other(ddp):
        draw(ddp, "other")

    @pytest.mark.ddp(world_size=2, seed="same")
    def test_same(ddp):
        draw(ddp, "same")

    @pytest.mark.ddp(world_size=2, seed=7)
    def test_seven(ddp):
        draw(ddp, "seven")
"""

LIGHTNING_CONFTEST = """
    import os

    import lightning
    from lightning.pytorch.utilities import rank_zero_only

    assert rank_zero_only.rank == int(os.environ.get("RANK", 0))
"""

LIGHTNING = """
    import lightning.fabric.utilities.rank_zero
    import lightning.pytorch.utilities.rank_zero
    import lightning_utilities.core.rank_zero
    import pytest
    from lightning.pytorch.utilities import rank_zero_only

    @pytest.mark.ddp(world_size=[1, 3])
    def test_lightning(ddp):
        for module in (
            lightning.fabric.utilities.rank_zero,
            lightning.pytorch.utilities.rank_zero,
            lightning_utilities.core.rank_zero,
        ):
            assert module.rank_zero_only.rank == ddp.rank
        ran = rank_zero_only(lambda: "ran")()
        assert ddp.gather(ran) == ["ran"] + [None] * (ddp.world_size - 1)
"""

PASSING = [
    "test_module_mark", "test_function_mark", "TestClassMark::test_class_mark",
    "TestClassMark::test_in_class", "TestClassMark::test_arguments_add_up",
    "test_list[ws1]", "test_list[ws2]", "TestListOnClass::test_method[ws1]",
    "TestListOnClass::test_method[ws2]", "test_mark_on_a_parameter[1]",
    "test_mark_on_a_parameter[3]", "test_env", "test_env_is_gone", "test_own_init_twice",
    "test_own_init_again", "test_group_is_back", "test_no_group_at_all",
    "test_no_fixture_asked_for", "test_attributes", "test_gather", "test_large_gather",
    "test_broadcast", "test_wrong_source", "test_barrier", "test_side_channel_without_the_group",
    "test_torchrun_environment",
]  # fmt: skip


@pytest.fixture(scope="module")
def forms(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_forms.py", FORMS)
    suite.write("test_fixture.py", FIXTURE)
    return suite.run(env={"RANK": "5", "WORLD_SIZE": "9", "LOCAL_RANK": "5"})


@pytest.mark.parametrize("name", PASSING)
def test_passes(forms: Finished, name: str) -> None:
    """The test passes although pytest itself was started with another rank's environment."""
    assert forms[name].verdict == "passed", forms[name].text


def test_a_list_multiplies_with_parameters(forms: Finished) -> None:
    made = [name for name in forms.results if "test_list_and_parameters" in name]
    parts = {frozenset(name.partition("[")[2].rstrip("]").split("-")) for name in made}
    assert parts == {frozenset((ws, letter)) for ws in ("ws1", "ws2") for letter in "ab"}
    assert {forms.results[name].verdict for name in made} == {"passed"}


def test_a_missing_rank_is_named(forms: Finished) -> None:
    result = forms["test_missing_rank_is_named"]
    assert result.verdict == "failed"
    assert "rank 1" in result.phase("call").message or "rank 1 " in result.text
    assert "gather" in result.text


# ---------------------------------------------------------------- seeds

Draws = dict[tuple[str, int], list[float]]


@pytest.fixture(scope="module")
def draws(new_suite: Callable[[], Suite]) -> Callable[..., Draws]:
    """Runs the suite of draws and returns what each test and rank drew."""
    suite = new_suite()
    suite.write("test_seeds.py", SEEDS)

    def run(*args: str) -> Draws:
        directory = Path(suite.directory.parent, f"{suite.directory.name}-draws{len(runs)}")
        directory.mkdir()
        runs.append(directory)
        suite.run(*args, env={"DRAWS": str(directory)}).assert_outcomes(passed=4)
        files = {
            tuple(file.name.split()): json.loads(file.read_text()) for file in directory.iterdir()
        }
        return {(name, int(rank)): drawn for (name, rank), drawn in files.items()}

    runs: list[Path] = []
    return run


@pytest.fixture(scope="module")
def first(draws: Callable[..., Draws]) -> Draws:
    return draws()


def test_seeds_differ_between_ranks_and_tests(first: Draws) -> None:
    for generator in range(3):
        distinct = {
            first[name, rank][generator] for name in ("default", "other") for rank in (0, 1)
        }
        assert len(distinct) == 4


def test_same_seed(first: Draws) -> None:
    assert first["same", 0] == first["same", 1]
    assert first["seven", 0] != first["seven", 1]


def test_seeds_are_reproducible(first: Draws, draws: Callable[..., Draws]) -> None:
    """The tests run in another order and draw the same: no draw of one test moves the next."""
    assert draws("test_seeds.py::test_seven", "test_seeds.py") == first


def test_session_seed(first: Draws, draws: Callable[..., Draws]) -> None:
    other = draws("--ddp-seed=5")
    assert other["seven", 0] == first["seven", 0]
    assert other["default", 0] != first["default", 0]
    assert other["same", 0] == other["same", 1] != first["same", 0]


# ---------------------------------------------------------------- Lightning


def test_lightning_knows_its_rank(suite: Suite) -> None:
    """Lightning computes the rank at import, and so is imported by each rank."""
    suite.write("conftest.py", LIGHTNING_CONFTEST)
    suite.write("test_lightning.py", LIGHTNING)
    finished = suite.run("-W", "ignore", timeout=90)
    finished.assert_outcomes(passed=2)
