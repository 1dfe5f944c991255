"""Ranks that meet before each of them does what only one of them can do."""

from __future__ import annotations

import pytest
from ddp_conformance import Writer
from ddp_conformance.writing import checks
from ddp_conformance.writing.mutants.writers import RemovesWhatIsThere, lines
from ddp_conformance.writing.publishing import Arriving

from pytest_ddp import Ddp


@pytest.mark.ddp(world_size=2)
@pytest.mark.parametrize("slow", [0, 1])
def test_none_goes_on_before_the_others_have_acted(
    ddp: Ddp, slow: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 makes the second file at once, and rank 1 would remove that one: none would raise.

    The slow rank acts when the other one has acted and goes on, or is held before it does.
    """
    come_together = Arriving.come_together

    def come_and_act_later(arriving: Arriving) -> None:
        come_together(arriving)
        if ddp.rank == slow:
            following, number = arriving._exchanges + 1, arriving._met
            arriving._await(
                lambda rank: (
                    arriving._acted(rank, following, number).exists()
                    or arriving._mark(rank, following).exists()
                )
            )

    monkeypatch.setattr(checks, "RECORDS", 2)
    monkeypatch.setattr(Arriving, "come_together", come_and_act_later)
    found = checks.find_several_writers(Writer(RemovesWhatIsThere, records=lines), ddp)
    (one,) = found
    assert one.what.startswith(f"rank {slow} raises where another rank was first: ")
