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
