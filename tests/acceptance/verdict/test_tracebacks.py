"""No frame of the plugin stands in a traceback of the user's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite

RAISES = """
    import pytest
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    pytestmark = pytest.mark.ddp(world_size=2)

    def fail():
        raise ValueError("on purpose")

    @pytest.fixture
    def fails():
        fail()

    @pytest.fixture(scope="module")
    def fails_for_module():
        fail()

    @pytest.fixture
    def fails_last():
        yield
        fail()

    @pytest.fixture(scope="module")
    def fails_last_for_module():
        yield
        fail()

    class Unfit(torch.nn.Module):
        def forward(self, x):
            fail()

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            fail()

    class Unpicklable:
        def __reduce__(self):
            fail()

    def test_call():
        fail()

    def test_fixture(fails):
        pass

    def test_module_fixture(fails_for_module):
        pass

    def test_teardown(fails_last):
        fail()

    def test_forward():
        Unfit().to("cpu")(torch.ones(1))

    def test_wrap():
        DistributedDataParallel(torch.nn.Identity())

    def test_backward():
        Backward.apply(torch.ones(1, requires_grad=True)).backward()

    def test_collective():
        dist.all_gather([torch.ones(3)] * 2, torch.ones(2))

    def test_gather(ddp):
        ddp.gather(Unpicklable())

    def test_cause(ddp):
        try:
            ddp.gather(Unpicklable())
        except ValueError as error:
            raise RuntimeError("of it") from error

    def test_phase(ddp):
        with ddp.phase("mine"):
            fail()

    def test_alone(ddp):
        if ddp.rank:
            ddp.barrier()

    def test_interrupt():
        raise KeyboardInterrupt

    def test_module_teardown(fails_last_for_module):
        pass
"""


@pytest.fixture(scope="module", params=["auto", "native", "full-trace"])
def run(request: pytest.FixtureRequest, new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_suite.py", RAISES)
    style = request.param
    return suite.run("--full-trace" if style == "full-trace" else f"--tb={style}")


def test_no_frame_of_the_plugin_is_shown(run: Finished) -> None:
    shown = [line for line in run.output.splitlines() if "pytest_ddp/" in line]
    assert shown == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("fixture", "fail()"),
        ("wrap", "DistributedDataParallel(torch.nn.Identity())"),
        ("collective", "dist.all_gather([torch.ones(3)] * 2, torch.ones(2))"),
        ("gather", "ddp.gather(Unpicklable())"),
        ("alone", "ddp.barrier()"),
    ],
)
def test_the_line_of_the_user_is_shown(run: Finished, name: str, line: str) -> None:
    text = run[f"test_{name}"].text
    assert line in text
    assert "test_suite.py" in text
