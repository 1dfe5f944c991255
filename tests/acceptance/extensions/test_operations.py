"""Plugins that subscribe to the operations of ranks: those of the page of hooks, and others."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.suite import EXTRA_ARGS, Finished, Suite

PAGE = Path(__file__).parents[3] / "docs" / "hookspecs.md"
BLOCKS = {
    name: code
    for name, code in re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    if name in ("traffic", "late")
}


def test_the_examples_are_short() -> None:
    assert {name: len(code.splitlines()) <= 60 for name, code in BLOCKS.items()} == {
        "traffic": True,
        "late": True,
    }


LATE = """
    import time

    import pytest
    import torch
    import torch.distributed as dist


    @pytest.mark.late
    @pytest.mark.ddp(world_size=2)
    def test_patient():
        for _ in range(3):
            dist.barrier()


    @pytest.mark.late
    @pytest.mark.ddp(world_size=2)
    def test_reads_too_early(ddp):
        total = torch.ones(1)
        dist.barrier()
        work = dist.all_reduce(total, async_op=True)
        time.sleep(1.5)
        seen = total.item()
        work.wait()
        assert seen == 2


    @pytest.mark.ddp(world_size=2)
    def test_without_the_mark(ddp):
        for _ in range(3):
            dist.barrier()
"""


def test_a_rank_is_late_in_three_runs(suite: Suite) -> None:
    suite.write("conftest.py", BLOCKS["late"])
    suite.write("test_late.py", LATE)
    finished = suite.run(*EXTRA_ARGS)
    finished.assert_outcomes(passed=2, failed=1)
    assert "fails if rank 1 is 3 s late" in finished["test_reads_too_early"].text
    assert finished["test_patient"].duration > 3


SUBSCRIBERS = """
    import time

    import pytest
    import torch


    class Mistaken:
        def before(self, operation):
            if operation.name == "all_gather":
                raise KeyError("mine")


    class Refusing:
        def before(self, operation):
            if operation.name == "reduce":
                return LookupError("no reduce today")


    class Holding:
        operations = None

        def before(self, operation):
            if operation.name == "broadcast":
                with self.operations.holding("held until the end of time"):
                    time.sleep(600)


    class Helped:
        seen = []

        def before(self, operation):
            self.note(operation)

        def note(self, operation):
            torch.zeros(1).add_(1)  # what the compiler looks for in a frame
            self.seen.append(operation.name)


    def pytest_ddp_operations(operations):
        Holding.operations = operations
        for subscriber in (Mistaken(), Refusing(), Holding(), Helped(), Helped()):
            operations.subscribe(subscriber)


    @pytest.fixture
    def seen():
        Helped.seen.clear()
        return Helped.seen
"""
TESTS = """
    import os
    import sys
    import warnings

    import pytest
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as functional

    pytestmark = pytest.mark.ddp(world_size=2)


    def test_mistaken(ddp):
        parts = [torch.zeros(1), torch.zeros(1)]
        dist.all_gather(parts, torch.ones(1))
        assert parts == [torch.ones(1), torch.ones(1)]


    def test_refused(ddp):
        with pytest.raises(LookupError, match="no reduce today"):
            dist.reduce(torch.ones(1), 0)
        dist.barrier()


    def test_refused_unexpectedly(ddp):
        dist.reduce(torch.ones(1), 0)


    @pytest.mark.ddp(world_size=2, timeout=4)
    def test_held(ddp):
        if ddp.rank == 1:
            dist.broadcast(torch.ones(1), 0)
        else:
            dist.barrier()


    def test_exchanges(ddp, seen):
        ddp.barrier()
        assert seen == ["ddp.barrier"] * 2


    def test_lines_of_warnings(ddp):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            dist.all_reduce_coalesced([torch.ones(1)])  # it is deprecated
        # By torch's own stacklevel it is the line of the wrapper that logs the call.
        assert [os.path.basename(one.filename) for one in caught] == ["c10d_logger.py"]


    def test_compiled(ddp, seen):
        from torch._dynamo import utils

        @torch.compile(backend="eager", fullgraph=True)
        def step(x):
            return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

        utils.clear_compilation_metrics()
        assert step(torch.ones(2)).tolist() == [5, 5]
        assert [one.co_name for one in utils.get_compilation_metrics()] == ["step"]
        assert seen == ["all_reduce"] * 2


    def test_broken_graphs(ddp, seen):
        from torch._dynamo import utils

        @torch.compile(backend="eager")
        def step(x):
            dist.barrier()
            return x + 1

        utils.clear_compilation_metrics()
        step(torch.ones(2))
        assert seen == ["barrier"] * 2
        names = {one.co_name for one in utils.get_compilation_metrics()}
        assert not names & {"before", "note", "_call", "tell_before", "issuing"}
"""


@pytest.fixture(scope="module")
def finished(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("conftest.py", SUBSCRIBERS)
    suite.write("test_all.py", TESTS)
    return suite.run(*EXTRA_ARGS)


def test_the_mistake_of_a_subscriber_is_a_warning(finished: Finished) -> None:
    assert finished["test_mistaken"].verdict == "passed"
    (text,) = {one for one in finished.warnings if "Mistaken" in one}
    assert "conftest.Mistaken has raised in before:" in text
    assert "KeyError: 'mine'" in text


def test_what_a_subscriber_returns_is_raised_in_the_users_line(finished: Finished) -> None:
    assert finished["test_refused"].verdict == "passed"
    text = finished["test_refused_unexpectedly"].text
    assert "LookupError: no reduce today" in text
    assert ">       dist.reduce(torch.ones(1), 0)" in text
    assert "pytest_ddp" not in text


def test_a_rank_that_is_held_holds_up_the_test_and_proves_nothing(finished: Finished) -> None:
    text = finished["test_held"].text
    assert "held until the end of time" in text
    assert "deadlock" not in text
    assert "mismatch" not in text


@pytest.mark.parametrize("name", ["exchanges", "lines_of_warnings", "compiled", "broken_graphs"])
def test_users_see_what_they_see_without_subscribers(finished: Finished, name: str) -> None:
    assert finished[f"test_{name}"].verdict == "passed", finished[f"test_{name}"].text
