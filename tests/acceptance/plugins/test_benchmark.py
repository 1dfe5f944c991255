"""pytest-benchmark's fixture in ranks, with the real plugin."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.plugins.test_zoo import PLACE
from tests.acceptance.suite import INNER, SPAWNED, UNDER_XDIST, Finished, Suite

pytestmark = pytest.mark.skipif(UNDER_XDIST, reason="the plugin measures nothing under xdist")

SOURCE = """
    import os
    import signal

    import pytest
    import torch
    import torch.distributed as dist

    ddp = pytest.mark.ddp(world_size=2)

    class Counted:
        def __init__(self, function):
            self.function = function
            self.calls = 0

        def __call__(self, *args):
            self.calls += 1
            return self.function(*args)

    def reduce():
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        return tensor.item()

    @ddp
    def test_collective(ddp, benchmark):
        counted = Counted(reduce)
        assert benchmark(counted) == 2
        assert len(set(ddp.gather(counted.calls))) == 1
        assert benchmark.stats.stats.rounds >= 3

    @ddp
    @pytest.mark.benchmark(precision=0.5, confidence=0.5, max_time=0.5)
    def test_precise(ddp, benchmark):
        counted = Counted(reduce)
        benchmark(counted)
        assert len(set(ddp.gather(counted.calls))) == 1

    @ddp
    @pytest.mark.benchmark(warmup=True, warmup_iterations=3)
    def test_warm(ddp, benchmark):
        counted = Counted(reduce)
        benchmark(counted)
        assert len(set(ddp.gather(counted.calls))) == 1

    @pytest.mark.ddp(world_size=3)
    @pytest.mark.parametrize("power", [2])
    @pytest.mark.benchmark(group="powers")
    def test_local(ddp, benchmark, power):
        benchmark.extra_info["rank"] = ddp.rank
        benchmark.extra_info["odd"] = {1: torch.float32}
        assert benchmark(pow, 3 + ddp.rank, power) == (3 + ddp.rank) ** 2

    @ddp
    def test_on_rank_zero_alone(ddp, benchmark):
        if ddp.rank == 0:
            benchmark(lambda: None)
        dist.barrier()

    @pytest.mark.ddp(world_size=3)
    def test_in_a_subgroup(ddp, benchmark):
        group = dist.new_group([0, 2])
        if ddp.rank != 1:
            benchmark(lambda: dist.all_reduce(torch.ones(1), group=group))
        dist.barrier()
        dist.destroy_process_group(group)

    @ddp
    def test_pedantic(ddp, benchmark):
        counted = Counted(lambda value: reduce() + value)
        setup = lambda: ((ddp.rank,), {})
        assert benchmark.pedantic(counted, setup=setup, rounds=7) == 2 + ddp.rank
        assert counted.calls == (7 if not benchmark.cprofile else 8)

    @pytest.mark.ddp(world_size=1)
    def test_one_rank(benchmark):
        assert benchmark(reduce) == 1

    @ddp
    def test_without():
        reduce()

    def test_here(benchmark):
        benchmark(lambda: None)
"""

UGLY = """
    import os
    import signal

    import pytest
    import torch
    import torch.distributed as dist

    ddp = pytest.mark.ddp(world_size=2)

    def fails_at(call, ddp, rank, act):
        calls = 0

        def function():
            nonlocal calls
            calls += 1
            if ddp.rank == rank and calls == call:
                act()
            dist.all_reduce(torch.ones(1))
        return function

    def fail():
        raise ValueError("of the function")

    @ddp
    @pytest.mark.parametrize("call", [1, 4])
    @pytest.mark.parametrize("rank", [0, 1])
    def test_raises(ddp, benchmark, rank, call):
        benchmark(fails_at(call, ddp, rank, fail))

    @ddp
    @pytest.mark.parametrize("rank", [0, 1])
    def test_dies(ddp, benchmark, rank):
        benchmark(fails_at(3, ddp, rank, lambda: os.kill(os.getpid(), signal.SIGKILL)))

    @ddp
    def test_leader_raises_alone(ddp, benchmark):
        benchmark(lambda: fail() if ddp.rank == 0 else None)

    @ddp
    def test_not_on_rank_zero(ddp, benchmark):
        if ddp.rank == 1:
            benchmark(lambda: None)

    @ddp
    def test_fails_afterwards(ddp, benchmark):
        benchmark(lambda: None)
        assert ddp.rank == 0

    @ddp
    def test_twice(benchmark):
        benchmark(lambda: None)
        benchmark(lambda: None)

    @ddp
    def test_flaky(ddp, benchmark, request):
        file = request.path.with_name("seen")
        seen = ddp.broadcast(file.exists())
        file.touch()
        benchmark(lambda: dist.all_reduce(torch.ones(1)))
        assert seen or ddp.rank == 0
"""

SHORT = ("--benchmark-max-time=0.02", "--benchmark-min-rounds=3")


def _run(suite: Suite, *args: str, **env: str) -> Finished:
    path = os.pathsep.join(map(str, (INNER, PLACE)))
    plugins = [
        word for name in ("pytest_benchmark.plugin", "rerunfailures") for word in ("-p", name)
    ]
    alone = {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return suite.run("-p", "ddp", *plugins, *SHORT, *args, timeout=120, env=alone | env)


def _read(file: Path) -> dict[str, Any]:
    return {one["name"]: one for one in json.loads(file.read_text())["benchmarks"]}


@pytest.fixture(scope="module")
def measured(new_suite: Callable[[], Suite]) -> tuple[Suite, Finished]:
    suite = new_suite()
    suite.write("test_suite.py", SOURCE)
    files = ("--benchmark-json=out.json", "--benchmark-autosave", "--benchmark-cprofile=tottime")
    return suite, _run(suite, *files, "--benchmark-cprofile-dump=profiles/of")


BENCHMARKS = {
    *("test_collective", "test_precise", "test_warm", "test_local[2]", "test_on_rank_zero_alone"),
    *("test_in_a_subgroup", "test_pedantic", "test_one_rank", "test_here"),
}


def test_ranks_call_the_function_equally_often(measured: tuple[Suite, Finished]) -> None:
    _, finished = measured
    finished.assert_outcomes(passed=10)


def test_the_table_has_each_benchmark_once(measured: tuple[Suite, Finished]) -> None:
    _, finished = measured
    table = finished.stdout.partition(" benchmark: ")[2].partition("Legend:")[0]
    names = [line.split()[0] for line in table.splitlines() if line.startswith("test_")]
    assert sorted(names) == sorted(BENCHMARKS)
    assert "benchmark 'powers': 1 tests" in finished.stdout


def test_the_file_has_the_rounds_of_rank_zero(measured: tuple[Suite, Finished]) -> None:
    suite, _ = measured
    found = _read(suite.directory / "out.json")
    assert found.keys() == BENCHMARKS
    local = found["test_local[2]"]
    assert (local["group"], local["params"], local["param"]) == ("powers", {"power": 2}, "2")
    assert local["extra_info"] == {"rank": 0, "odd": {"1": "UNSERIALIZABLE[torch.float32]"}}
    assert local["fullname"] == "test_suite.py::test_local[2]"
    assert local["options"] == found["test_here"]["options"]
    for one in found.values():
        assert len(one["stats"]["data"]) == one["stats"]["rounds"] >= 2
        assert one["cprofile"]
    assert found["test_pedantic"]["stats"]["rounds"] == 7


def test_it_is_saved_once_and_profiles_are_written_once(measured: tuple[Suite, Finished]) -> None:
    suite, finished = measured
    saved = list((suite.directory / ".benchmarks").rglob("*.json"))
    assert len(saved) == 1
    assert _read(saved[0]).keys() == BENCHMARKS
    assert len(list((suite.directory / "profiles").iterdir())) == len(BENCHMARKS)
    assert "cProfile (time in s)" in finished.stdout


def test_a_later_run_compares_with_it(measured: tuple[Suite, Finished]) -> None:
    suite, _ = measured
    later = _run(suite, "--benchmark-compare", "--benchmark-only", "-k", "collective or without")
    later.assert_outcomes(passed=1, skipped=1)
    assert "test_collective (0001" in later.stdout
    assert "test_collective (NOW)" in later.stdout
    assert later.output.count("Comparing against benchmarks from") == 1


@pytest.mark.parametrize(
    ("option", "outcomes"),
    [("--benchmark-disable", {"passed": 2}), ("--benchmark-skip", {"passed": 1, "skipped": 1})],
)
def test_without_measuring(
    measured: tuple[Suite, Finished], option: str, outcomes: dict[str, int]
) -> None:
    suite, _ = measured
    finished = _run(suite, option, "-k", "one_rank or without")
    finished.assert_outcomes(**outcomes)
    assert "benchmark: " not in finished.stdout.partition("collected")[2]


@pytest.mark.skipif(SPAWNED, reason="has its own arguments")
def test_under_xdist_the_plugin_prints_why_it_does_not_measure(
    measured: tuple[Suite, Finished],
) -> None:
    suite, _ = measured
    finished = _run(suite, "-p", "xdist", "-n1", "-k", "test_on_rank_zero_alone or test_here")
    finished.assert_outcomes(passed=2)
    said = "Benchmarks are automatically disabled because xdist plugin is active"
    assert said in " ".join(finished.output.split())


@pytest.fixture(scope="module")
def ugly(new_suite: Callable[[], Suite]) -> tuple[Suite, Finished]:
    suite = new_suite()
    suite.write("test_suite.py", UGLY)
    only = ("--only-rerun=AssertionError", "--reruns=1")
    return suite, _run(suite, "--benchmark-json=out.json", *only)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(
            (f"test_raises[{rank}-{call}]", "ValueError: of the function")
            for rank in (0, 1)
            for call in (1, 4)
        ),
        ("test_dies[0]", "rank 0 died of SIGKILL"),
        ("test_dies[1]", "rank 1 died of SIGKILL"),
        ("test_leader_raises_alone", "ValueError: of the function"),
        ("test_not_on_rank_zero", "rank 0 has ended the test without a benchmark"),
        ("test_fails_afterwards", "assert 1 == 0"),
        ("test_twice", "Fixture can only be used once"),
    ],
)
def test_failure(ugly: tuple[Suite, Finished], name: str, text: str) -> None:
    _, finished = ugly
    assert "failed" in finished[name].verdict
    assert text in finished[name].text


def test_benchmarks_that_failed_are_in_no_file(ugly: tuple[Suite, Finished]) -> None:
    suite, finished = ugly
    assert finished["test_flaky"].verdict == "rerun+passed"
    names = [
        one["name"] for one in json.loads((suite.directory / "out.json").read_text())["benchmarks"]
    ]
    # As of plain tests: a failure after the benchmark keeps it, an attempt more is one more.
    assert sorted(names) == ["test_fails_afterwards"] * 2 + ["test_flaky"] * 2
