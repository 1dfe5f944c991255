"""Every mutant dies of its own guarantee, and no check fails for a benign twin."""

from __future__ import annotations

import pytest
from ddp_conformance.mutants import Mutant, Twin, all_mutants, all_twins
from ddp_conformance.registry import Check, all_checks, checks_for
from ddp_conformance.subjects import Subject
from ddp_conformance.verdict import GuaranteeError

from pytest_ddp import Ddp


def applicable(subject: Subject) -> list[Check]:
    return [check for check in checks_for(subject) if check.obstacle(subject) is None]


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(
            mutant,
            id=f"{mutant.subject.name}-{mutant.guarantee}-ws{world_size}",
            marks=pytest.mark.ddp(world_size=world_size),
        )
        for mutant in all_mutants()
        for world_size in mutant.world_sizes
    ],
)
def test_mutant_dies_of_its_guarantee(ddp: Ddp, mutant: Mutant) -> None:
    (check,) = [check for check in applicable(mutant.subject) if check.id == mutant.guarantee]
    with pytest.raises(GuaranteeError, match=rf"^{mutant.guarantee}: ") as caught:
        check(mutant.subject)
    assert len(set(ddp.gather(str(caught.value)))) == 1, "ranks disagree on the evidence"


@pytest.mark.parametrize(
    "twin",
    [
        pytest.param(
            twin,
            id=f"{twin.subject.name}-twin-ws{world_size}",
            marks=pytest.mark.ddp(world_size=world_size),
        )
        for twin in all_twins()
        for world_size in twin.world_sizes
    ],
)
def test_twin_lives(twin: Twin) -> None:
    checks = applicable(twin.subject)
    assert checks, "a twin that no check looks at proves nothing"
    for check in checks:
        check(twin.subject)


def test_every_guarantee_has_a_mutant_and_a_twin() -> None:
    assert {mutant.guarantee for mutant in all_mutants()} == {check.id for check in all_checks()}
    looked_at = {check.id for twin in all_twins() for check in applicable(twin.subject)}
    assert looked_at == {check.id for check in all_checks()}


def test_names_are_unique() -> None:
    names = [entry.subject.name for entry in (*all_mutants(), *all_twins())]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("mutant", [pytest.param(m, id=m.subject.name) for m in all_mutants()])
def test_mutant_is_judged_by_its_guarantee(mutant: Mutant) -> None:
    assert mutant.guarantee in {check.id for check in applicable(mutant.subject)}
    assert 2 in mutant.world_sizes
