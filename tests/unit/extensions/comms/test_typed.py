"""The annotation with ``comms``, as mypy reads it: it checks this file with all others."""

from __future__ import annotations

from typing import assert_type

from pytest_ddp import Ddp
from pytest_ddp.extensions.comms.block import Comms
from pytest_ddp.extensions.comms.typed import DdpWithComms


def in_a_test(ddp: DdpWithComms) -> None:
    """What a user writes."""
    with ddp.comms(warmup=0) as comms:
        ddp.barrier()
    assert_type(comms, Comms)
    assert_type(comms.counts(), dict[str, int])
    assert_type(ddp.rank, int)


def test_it_adds_nothing_but_its_annotation() -> None:
    assert not {"comms"} & vars(DdpWithComms).keys()
    assert DdpWithComms.__bases__ == (Ddp,)
