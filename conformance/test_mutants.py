"""Every mutant dies of its own guarantee."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ddp_conformance.framework.mutants import Mutant, all_benign_variants, all_mutants
from ddp_conformance.framework.registry import all_checks

from conformance import entries, kill_matrix
from conformance.kill_matrix import applicable

PAGE = Path(__file__).parents[1] / "docs" / "kill-matrix.md"


# The plugin warns of what some mutants do, such as a collective before or after another one.
@pytest.mark.filterwarnings("ignore::pytest_ddp.DdpWarning")
@pytest.mark.parametrize("mutant", entries.mutants(launched=False))
def test_mutant_dies_of_its_guarantee(
    mutant: Mutant, demand_death: Callable[[Mutant], None]
) -> None:
    demand_death(mutant)


def test_every_guarantee_has_a_mutant_and_a_variant() -> None:
    assert {mutant.guarantee for mutant in all_mutants()} == {check.id for check in all_checks()}
    looked_at = {
        check.id for variant in all_benign_variants() for check in applicable(variant.subject)
    }
    assert looked_at == {check.id for check in all_checks()}


def test_names_are_unique() -> None:
    names = [entry.subject.name for entry in (*all_mutants(), *all_benign_variants())]
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


def test_a_page_has_what_it_was_made_of() -> None:
    mutants = kill_matrix.shown_mutants()
    fates = {m.subject.name: {m.guarantee: kill_matrix.OWN, "XYZ-01": "·"} for m in mutants}
    page = kill_matrix.render(fates)
    assert kill_matrix.updated(page, {}) == fates
    first = mutants[0].subject.name
    renewed = kill_matrix.updated(page, {first: {"XYZ-01": "k"}})
    assert renewed == fates | {first: {"XYZ-01": "k"}}
