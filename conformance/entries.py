"""Mutants and benign variants as tests: their parameters, and what each of them must do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from ddp_conformance import Cache, ErrorPath, Guard, Training, TrainStep
from ddp_conformance.framework.mutants import (
    BenignVariant,
    Mutant,
    all_benign_variants,
    all_mutants,
)
from ddp_conformance.framework.verdict import GuaranteeError, UndecidedError
from ddp_conformance.frontend.pytest_frontend import ranks_for

from conformance import kill_matrix
from conformance.kill_matrix import applicable
from pytest_ddp import Ddp

LAUNCHED = (Cache, ErrorPath, Guard, Training, TrainStep)
"""Kinds with at least one check in processes that a server of forks launches."""


def mutants(*, launched: bool) -> list[Any]:
    """Parameters of a test of mutants: those that are launched, or the others."""
    return _at_their_sizes(all_mutants(), launched)


def variants(*, launched: bool) -> list[Any]:
    """Parameters of a test of benign variants: those that are launched, or the others."""
    return _at_their_sizes(all_benign_variants(), launched)


def _at_their_sizes(entries: Iterable[Mutant | BenignVariant], launched: bool) -> list[Any]:
    return [
        pytest.param(
            entry,
            id=f"{entry.subject.name}-{getattr(entry, 'guarantee', 'variant')}-ws{world_size}",
            marks=ranks_for(entry.subject, world_size),
        )
        for entry in entries
        if isinstance(entry.subject, LAUNCHED) == launched
        for world_size in entry.world_sizes
    ]


def demand_death(
    ddp: Ddp, record_property: Callable[[str, object], None], matrix: bool, mutant: Mutant
) -> None:
    """The mutant's own guarantee fails, for reasons that all ranks agree on.

    With ``matrix`` it is also noted which others do, on two ranks.
    """
    (check,) = [check for check in applicable(mutant.subject) if check.id == mutant.guarantee]
    with pytest.raises(GuaranteeError, match=rf"^{mutant.guarantee} is broken by ") as caught:
        check(mutant.subject)
    assert len(set(ddp.gather(str(caught.value)))) == 1, "ranks disagree on the evidence"
    if ddp.world_size == 2 and matrix:
        record_property(kill_matrix.FATES, kill_matrix.fates_of(mutant))


def demand_life(variant: BenignVariant) -> None:
    """No check fails; those that cannot judge it are the ones that it names."""
    checks = applicable(variant.subject)
    assert checks, "a benign variant that no check looks at proves nothing"
    undecided = set()
    for check in checks:
        try:
            check(variant.subject)
        except UndecidedError:
            if check.id not in variant.undecided:
                raise
            undecided.add(check.id)
    assert undecided == variant.undecided
