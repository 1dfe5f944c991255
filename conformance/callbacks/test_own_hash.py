"""Launched error paths have a hash seed of each rank's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ddp_conformance import Case, ErrorPath
from ddp_conformance.callbacks.checks import death_run
from ddp_conformance.callbacks.history import StepEnd
from ddp_conformance.callbacks.subjects import Trip
from ddp_conformance.launched.order import Scenario

from pytest_ddp import Ddp


def tells_orders(case: Case, trip: Trip) -> Iterator[dict[str, object]]:
    names = {f"shard-{index}" for index in range(16)}
    yield {"names": list(names), "sorted": sorted(names), "numbers": list(set(range(16)))}
    trip(1)


@pytest.mark.ddp(world_size=2)
def test_only_the_order_of_strings_differs(ddp: Ddp) -> None:
    scenario = Scenario(dying=1, death="raises")
    history = death_run(ErrorPath(tells_orders), ddp, scenario).history
    first, last = [dict(step.decisions) for step in history if isinstance(step, StepEnd)]
    assert first["names"] != last["names"]
    assert (first["sorted"], first["numbers"]) == (last["sorted"], last["numbers"])
