"""The verdicts on loops in which one rank's clocks gain time."""

from __future__ import annotations

import pytest
from ddp_conformance import GuaranteeError
from ddp_conformance.callbacks.mutants import hook_mutants
from ddp_conformance.callbacks.mutants.hook_mutants import decides
from ddp_conformance.framework.registry import all_checks, remarked

(CBK_02,) = (check for check in all_checks() if check.id == "CBK-02")


@pytest.mark.ddp(world_size=2)
def test_a_decision_by_a_clock_is_named_as_one() -> None:
    how = "the clocks of rank 1 gain 3661 s in each step"
    with pytest.raises(GuaranteeError, match=rf"size 45: {how}: step 9: save differs: "):
        CBK_02(decides(hook_mutants.saves_every_minute))
    with pytest.raises(GuaranteeError, match=r"size 45: step 9: rate differs: "):
        CBK_02(decides(hook_mutants.rate_of_the_rank_every_tenth))


@pytest.mark.ddp(world_size=2)
def test_a_loop_that_raises_then_is_judged_by_clocks_that_agree() -> None:
    CBK_02(decides(hook_mutants.limits_each_step))
    assert remarked() == "all clocks agree: the loop raises where those of rank 1 gain time"
