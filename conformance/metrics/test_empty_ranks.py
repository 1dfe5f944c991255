"""MET-04 on real ranks: what a rank without samples does wrong is said as it is."""

from __future__ import annotations

import pytest
from ddp_conformance import GuaranteeError, Metric
from ddp_conformance.framework.registry import all_checks
from ddp_conformance.metrics.mutants.reductions import (
    NONLINEAR,
    LargestOrZero,
    SkipsWhenEmpty,
    largest_value,
)


def text_of(subject: Metric) -> str:
    (check,) = [check for check in all_checks() if check.id == "MET-04"]
    with pytest.raises(GuaranteeError) as raised:
        check(subject)
    return " ".join(str(raised.value).split())


@pytest.mark.ddp(world_size=2)
def test_a_reduction_that_is_left_out_meets_none_of_the_next_report() -> None:
    text = text_of(Metric(SkipsWhenEmpty))
    assert "collective 0: rank 0 allreduce SUM float64[2] (" in text
    assert "), rank 1 reports 'all samples on rank 0'" in text


@pytest.mark.ddp(world_size=2)
def test_a_value_for_no_samples_shows_at_values_of_one_sign() -> None:
    text = text_of(Metric(LargestOrZero, NONLINEAR, reference=largest_value))
    assert "all values negative: all samples on rank 0: rank 0 reports 0, " in text
