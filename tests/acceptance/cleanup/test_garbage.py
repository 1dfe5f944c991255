"""Cycles that a test leaves do not outlive it: a compiled DDP model holds its group."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite

MODELS = """
    import gc
    import weakref

    import pytest
    import torch
    from torch.nn.parallel import DistributedDataParallel

    pytestmark = pytest.mark.ddp(world_size=2)
    gc.disable()  # no collection by chance
    LEFT = {}

    def build():
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        model.compile(backend="eager")  # the compiled call is bound to the model: a cycle
        model(torch.ones(1, 2)).sum().backward()
        return model

    @pytest.fixture
    def fixture_model(ddp):
        return build()

    @pytest.fixture(scope="module")
    def module_model():
        return build()

    def test_body(ddp):
        LEFT["body"] = weakref.ref(build())
        assert LEFT["body"]() is not None

    def test_after_body():
        assert LEFT["body"]() is None

    def test_fixture(fixture_model):
        LEFT["fixture"] = weakref.ref(fixture_model)

    def test_after_fixture():
        assert LEFT["fixture"]() is None

    def test_failure(ddp):
        model = build()
        LEFT["failure"] = weakref.ref(model)
        assert model is None

    def test_after_failure():
        assert LEFT["failure"]() is None

    def test_module(module_model):
        LEFT["module"] = weakref.ref(module_model)

    def test_module_model_is_kept(module_model):
        assert LEFT["module"]() is module_model
"""


@pytest.fixture(scope="module")
def finished(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_models.py", MODELS)
    return suite.run(timeout=120)


@pytest.mark.parametrize("test", re.findall(r"def (test_\w+)", MODELS))
def test_no_model_outlives_its_test(finished: Finished, test: str) -> None:
    verdict = "failed" if test == "test_failure" else "passed"
    assert finished[test].verdict == verdict, finished.tail()


CYCLES = """
    import gc
    import weakref

    import pytest
    import torch.distributed as dist

    from pytest_ddp.rank.cleanup import garbage

    garbage._CHEAP = 60.0  # seconds: also on a busy machine
    gc.disable()
    pytestmark = pytest.mark.ddp(world_size=2)
    LEFT, KEPT = {}, {}

    class Cycle:
        def __init__(self, value=None):
            self.me, self.value = self, value

    def leave(name, cycle):
        LEFT[name] = weakref.ref(cycle)

    def is_gone(name):
        return LEFT[name]() is None

    @pytest.fixture(scope="class")
    def wide():
        cycle = Cycle()
        leave("wide", cycle)
        yield cycle

    def test_first(ddp):
        leave("body", Cycle())

    def test_much(ddp):
        assert is_gone("body")
        cycle = Cycle()
        leave("much", cycle)
        gc.collect(1)  # as the collector does by chance: the cycle is among the old now

    class TestWide:
        def test_of_wide(self, wide):
            assert is_gone("much")

        def test_of_wide_again(self, wide):
            assert not is_gone("wide")

    def test_after_wide(ddp):
        assert is_gone("wide")
        KEPT["old"] = Cycle()
        leave("old", KEPT["old"])

    def test_lets_go(ddp):
        del KEPT["old"]

    @pytest.mark.parametrize("number", range(10))
    def test_later(ddp, number):
        pass

    def test_old_is_gone(ddp):
        assert is_gone("old")

    def test_group(ddp):
        group = dist.new_group([0, 1])
        dist.barrier(group)  # else a rank destroys it while its peer still connects
        dist.destroy_process_group(group)
        del group
        KEPT["group"] = Cycle()
        leave("group", KEPT["group"])

    def test_lets_go_of_group(ddp):
        del KEPT["group"]

    def test_group_is_gone():
        assert is_gone("group")
"""


@pytest.fixture(scope="module")
def cycles(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_cycles.py", CYCLES)
    return suite.run(timeout=120)


@pytest.mark.parametrize("test", re.findall(r"def (test_(?!later)\w+)", CYCLES))
def test_no_cycle_outlives_what_held_it_for_long(cycles: Finished, test: str) -> None:
    assert cycles[test].verdict == "passed", cycles.tail()
