"""Ranks and their group are kept from test to test, as long as nothing speaks against it.

A test that is to have an effect on the next one is followed by a test that looks.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable

import pytest

from tests.acceptance.recorded import Run, run_recorded, source
from tests.acceptance.suite import Suite

GONE = "test_no_group_that_is_gone_is_the_default_argument"
KEPT = """
    import os
    import random
    import sys

    import numpy
    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=2)
    KEPT = {}

    def test_first(ddp):
        KEPT["group"] = dist.group.WORLD
        dist.all_reduce(torch.ones(1))

    def test_group_is_kept(ddp):
        assert dist.group.WORLD is KEPT["group"]
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2.0

    @pytest.mark.ddp(world_size=1)
    def test_smaller(ddp):
        assert dist.get_world_size() == 1

    def test_a_group_is_the_default_argument(ddp):
        from torch.distributed.nn.functional import broadcast
        assert broadcast(torch.full((1,), float(ddp.rank)), src=1).item() == 1.0

    @pytest.mark.ddp(world_size=3)
    def test_no_group_that_is_gone_is_the_default_argument(ddp):
        from torch.distributed.nn.functional import broadcast
        assert broadcast(torch.full((1,), float(ddp.rank)), src=2).item() == 2.0

    @pytest.mark.ddp(world_size=3)
    def test_larger(ddp):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 3.0

    def test_size_again(ddp):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2.0

    def test_failing_on_all(ddp):
        assert False, "an ordinary failure"

    def test_after_failing_on_all(ddp):
        dist.all_reduce(torch.ones(1))

    def test_subgroup_destroyed(ddp):
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1), group=group)
        dist.destroy_process_group(group)

    def test_after_subgroup_destroyed(ddp):
        dist.all_reduce(torch.ones(1))

    def test_default_group_destroyed(ddp):
        dist.destroy_process_group()

    def test_after_default_group_destroyed(ddp):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2.0

    def test_other_default_group(ddp):
        dist.destroy_process_group()
        dist.init_process_group("gloo")
        KEPT["group"] = dist.group.WORLD

    def test_after_other_default_group(ddp):
        assert dist.group.WORLD is not KEPT["group"]
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2.0

    def test_seeds_alike(ddp):
        torch.manual_seed(1)
        random.seed(1)
        numpy.random.seed(1)

    def test_after_seeding_alike(ddp):
        for drawn in (torch.rand(1).item(), random.random(), numpy.random.rand()):
            assert len(set(ddp.gather(drawn))) == 2
"""

CHANGES = {
    "variable_set": ('os.environ["STRAY"] = "1"', '"STRAY" not in os.environ', ["STRAY"]),
    "variable_changed": ('os.environ["HOME"] = "/no"', 'os.environ["HOME"] != "/no"', ["HOME"]),
    "variable_removed": ('del os.environ["HOME"]', '"HOME" in os.environ', ["HOME"]),
    "directory": ('os.chdir("/")', 'os.getcwd() != "/"', ["working directory"]),
    "dtype": (
        "torch.set_default_dtype(torch.float64)",
        "torch.get_default_dtype() is torch.float32",
        ["dtype", "float64"],
    ),
    "device": (
        'torch.set_default_device("meta")',
        'torch.ones(1).device.type == "cpu"',
        ["device", "meta"],
    ),
    "grad_mode": ("torch.set_grad_enabled(False)", "torch.is_grad_enabled()", ["grad"]),
    "threads": ("torch.set_num_threads(2)", "torch.get_num_threads() == 1", ["threads"]),
    "alarm": ("signal.alarm(60)", "signal.alarm(0) == 0", ["the timer of SIGALRM"]),
    "on_one_rank": (
        'os.environ.update({"ODD": "1"} if ddp.rank else {})',
        '"ODD" not in os.environ',
        ["ODD"],
    ),
}
"""Name: what a test does, what holds in the next test, words of the warning."""

CHANGING = """
    @pytest.mark.ddp(world_size=2)
    def test_changes_{name}(ddp):
        {deed}

    @pytest.mark.ddp(world_size=2)
    def test_finds_{name}(ddp):
        assert {holds}
"""

LAWFUL = """
    @pytest.fixture(scope="module")
    def wide():
        before = os.getcwd()
        os.environ["WIDE"] = "1"
        os.chdir("/")
        torch.set_default_dtype(torch.float64)
        yield
        torch.set_default_dtype(torch.float32)
        os.chdir(before)
        del os.environ["WIDE"]

    @pytest.mark.ddp(world_size=2)
    def test_lawful_first(wide):
        assert os.environ["WIDE"] == "1" and os.getcwd() == "/"

    @pytest.mark.ddp(world_size=2)
    def test_lawful_second(wide):
        assert os.environ["WIDE"] == "1" and os.getcwd() == "/"
        assert torch.get_default_dtype() is torch.float64

    @pytest.mark.ddp(world_size=2)
    def test_lawful_monkeypatch(monkeypatch, tmp_path):
        monkeypatch.setenv("PATCHED", "1")
        monkeypatch.chdir(tmp_path)
        with torch.no_grad():
            pass
"""

REPLACED = """
    import os
    import signal
    import time

    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=3)

    def test_start(ddp):
        pass

    def test_crash(ddp):
        if ddp.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def test_after_crash(ddp):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 3.0

    @pytest.mark.ddp(isolate=True)
    def test_isolated(ddp):
        dist.all_reduce(torch.ones(1))

    @pytest.mark.ddp(isolate=True)
    def test_isolated_again(ddp):
        dist.all_reduce(torch.ones(1))

    def test_warm(ddp):
        dist.all_reduce(torch.ones(1))

    def test_still_warm(ddp):
        dist.all_reduce(torch.ones(1))

    @pytest.mark.ddp(timeout=2)
    def test_hang(ddp):
        if ddp.rank == 2:
            signal.pause()

    def test_after_hang(ddp):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 3.0
"""


MANY = """
    LEFT = bytearray(1 << 20)

    @pytest.mark.ddp(world_size=40, init=False)
    def test_rank(ddp):
        assert not any(LEFT) and torch.relu is not None
        LEFT[:] = b"x" * len(LEFT)
        torch.relu = None
        assert len(set(ddp.gather(os.getpid()))) == 40
"""


PREAMBLE = "import os\nimport signal\nimport pytest\nimport torch\n"


@pytest.fixture(scope="module")
def run(new_suite: Callable[[], Suite]) -> Run:
    suite = new_suite()
    suite.write("test_kept.py", KEPT)
    suite.write("test_changing.py", source(PREAMBLE, CHANGING, CHANGES))
    suite.write("test_lawful.py", PREAMBLE + textwrap.dedent(LAWFUL))
    suite.write("test_replaced.py", REPLACED)
    return run_recorded(suite)


def test_verdicts(run: Run) -> None:
    failed = {name for name, result in run.finished.results.items() if result.verdict != "passed"}
    expected = {"test_failing_on_all", "test_crash", "test_hang"}
    assert {name.rpartition("::")[2] for name in failed} == expected, run.finished.tail()
    written = sum(text.count("def test_") for text in (KEPT, LAWFUL, REPLACED))
    assert len(run.finished.results) == 2 * len(CHANGES) + written


# ---------------------------------------------------------------- kept


@pytest.mark.parametrize("test", re.findall(r"def (test_\w+)", KEPT))
def test_ranks_are_kept(run: Run, test: str) -> None:
    other = {"test_smaller": "test_smaller", "test_larger": GONE, GONE: "test_larger"}
    assert run.pids(test) == run.pids(other.get(test, "test_first"))


def test_each_world_size_has_ranks_of_its_own(run: Run) -> None:
    tests = ("test_smaller", "test_first", "test_larger")
    assert len({pid for test in tests for pid in run.pids(test)}) == 6


# ---------------------------------------------------------------- restored


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_restored(run: Run, name: str) -> None:
    """The inner test found that they are; here, that the rank went on, and who has the warning."""
    assert run.finished[f"test_finds_{name}"].verdict == "passed"
    assert run.pids(f"test_finds_{name}") == run.pids(f"test_changes_{name}")
    (warning,) = run.warnings_about(f"test_changes_{name}")
    for word in CHANGES[name][2]:
        assert word in warning
    assert ("rank 1" in warning) == (name == "on_one_rank")
    assert run.warnings_about(f"test_finds_{name}") == []


@pytest.mark.parametrize("test", re.findall(r"def (test_\w+)", LAWFUL))
def test_what_fixtures_change_is_theirs(run: Run, test: str) -> None:
    assert run.warnings_about(test) == []
    assert run.pids(test) == run.pids("test_lawful_first")


# ---------------------------------------------------------------- replaced


def test_only_the_dead_rank_is_replaced(run: Run) -> None:
    crashed, after = run.pids("test_crash"), run.pids("test_after_crash")
    assert crashed == run.pids("test_start")
    assert [old == new for old, new in zip(crashed, after, strict=True)] == [True, False, True]


def test_only_the_hanging_rank_is_replaced(run: Run) -> None:
    hanging, after = run.pids("test_hang"), run.pids("test_after_hang")
    assert [old == new for old, new in zip(hanging, after, strict=True)] == [True, True, False]


def test_isolated_tests_have_fresh_ranks(run: Run) -> None:
    names = ("test_after_crash", "test_isolated", "test_isolated_again")
    assert len({pid for name in names for pid in run.pids(name)}) == 9


def test_ranks_are_warm_after_isolation(run: Run) -> None:
    assert run.pids("test_warm") == run.pids("test_still_warm")


def test_isolation_of_all(suite: Suite) -> None:
    suite.write("test_lawful.py", PREAMBLE + textwrap.dedent(LAWFUL))
    run = run_recorded(suite, "--ddp-isolate")
    run.finished.assert_outcomes(passed=3)
    tests = re.findall(r"def (test_\w+)", LAWFUL)
    assert len({pid for test in tests for pid in run.pids(test)}) == 6


def test_many_starts(suite: Suite) -> None:
    """Before the last of them the host puts its memory into huge pages; no rank sees another's."""
    suite.write("test_many.py", PREAMBLE + textwrap.dedent(MANY))
    suite.run().assert_outcomes(passed=1)
