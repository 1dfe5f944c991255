"""A warning, a log record or a look at the caller finds the same place on a rank as without one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.suite import Suite
from tests.acceptance.verdict.place_examples import CALLS, PLACES

FILTERED = """
    import pytest
    import torch
    from torch.nn.parallel import DistributedDataParallel as DDP

    class Warns(torch.nn.Linear):
        def named_parameters(self, *args, **kwargs):
            import warnings
            # of named_parameters, DDP.__init__ and its caller
            warnings.warn("said of the caller of DDP", FutureWarning, stacklevel=3)
            return super().named_parameters(*args, **kwargs)

    @pytest.mark.filterwarnings("error::FutureWarning:test_filtered")
    @pytest.mark.ddp(world_size=2)
    def test_error(ddp):
        with pytest.raises(FutureWarning, match="said of the caller"):
            DDP(Warns(2, 2))

    @pytest.mark.filterwarnings("error::FutureWarning:elsewhere")
    @pytest.mark.ddp(world_size=2)
    def test_of_another_module(ddp):
        DDP(Warns(2, 2))
"""


@pytest.fixture(scope="module")
def folder(new_suite: Callable[[], Suite]) -> Path:
    suite = new_suite()
    suite.write("test_placed.py", PLACES)
    suite.run(timeout=240).assert_outcomes(passed=2 * len(CALLS))
    return suite.directory


@pytest.mark.parametrize("name", CALLS)
def test_each_probe_sees_the_same_frames_with_and_without_the_plugin(
    folder: Path, name: str
) -> None:
    on_rank, plain = (_read(folder, where, name) for where in ("rank", "plain"))
    assert on_rank == plain
    # Otherwise both would be the same of nothing at all.
    assert on_rank[-1]["code"] == "run"
    for seen in on_rank:
        assert seen["warning"] == seen["log"] == [seen["frame"]] == [seen["stack"]]
        assert [line for _, line in seen["registry"]] == [seen["frame"][1]]


def _read(folder: Path, where: str, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / f"{where}-{name}.json").read_text())
    return found


def test_a_filter_by_the_callers_module_meets_its_warning_on_ranks(suite: Suite) -> None:
    suite.write("test_filtered.py", FILTERED)
    suite.run().assert_outcomes(passed=2)
