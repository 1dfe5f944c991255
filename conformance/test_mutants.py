"""Every mutant dies of its own guarantee, and no check fails for a benign twin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ddp_conformance.mutants import Mutant, Twin, all_mutants, all_twins
from ddp_conformance.pytest_frontend import ranks_for
from ddp_conformance.registry import all_checks
from ddp_conformance.verdict import GuaranteeError

from conformance import kill_matrix
from conformance.kill_matrix import applicable
from pytest_ddp import Ddp

PAGE = Path(__file__).parents[1] / "docs" / "kill-matrix.md"


def at_its_sizes(entry: Mutant | Twin) -> list[Any]:
    return [
        pytest.param(
            entry,
            id=f"{entry.subject.name}-{getattr(entry, 'guarantee', 'twin')}-ws{world_size}",
            marks=ranks_for(entry.subject, world_size),
        )
        for world_size in entry.world_sizes
    ]


@pytest.mark.parametrize("mutant", [p for mutant in all_mutants() for p in at_its_sizes(mutant)])
def test_mutant_dies_of_its_guarantee(
    ddp: Ddp, mutant: Mutant, record_property: Callable[[str, object], None]
) -> None:
    (check,) = [check for check in applicable(mutant.subject) if check.id == mutant.guarantee]
    with pytest.raises(GuaranteeError, match=rf"^{mutant.guarantee}: ") as caught:
        check(mutant.subject)
    assert len(set(ddp.gather(str(caught.value)))) == 1, "ranks disagree on the evidence"
    if ddp.world_size == 2:
        record_property(kill_matrix.FATES, kill_matrix.fates_of(mutant))


@pytest.mark.parametrize("twin", [p for twin in all_twins() for p in at_its_sizes(twin)])
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


def test_every_mutant_is_judged_by_its_guarantee() -> None:
    for mutant in all_mutants():
        assert mutant.guarantee in {check.id for check in applicable(mutant.subject)}, mutant
        assert 2 in mutant.world_sizes, mutant


def test_the_page_shows_every_mutant_and_its_guarantee() -> None:
    shown = {
        row: [guarantee for guarantee, fate in fates.items() if fate == kill_matrix.OWN]
        for row, fates in kill_matrix.read(PAGE.read_text(encoding="utf-8")).items()
    }
    expected = {kill_matrix.title(m): [m.guarantee] for m in kill_matrix.shown_mutants()}
    assert shown == expected, "docs/kill-matrix.md is out of date; run `make kill-matrix`"


def test_a_page_says_what_it_was_made_of() -> None:
    mutants = kill_matrix.shown_mutants()
    fates = {m.subject.name: {m.guarantee: kill_matrix.OWN, "XYZ-01": "·"} for m in mutants}
    page = kill_matrix.render(fates)
    assert kill_matrix.updated(page, {}) == fates
    first = mutants[0].subject.name
    renewed = kill_matrix.updated(page, {first: {"XYZ-01": "k"}})
    assert renewed == fates | {first: {"XYZ-01": "k"}}
