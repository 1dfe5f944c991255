"""``python -m fidelity.races --truth`` of a race and of a legal program, with their real ranks."""

from __future__ import annotations

import pytest

from fidelity.races.records import programs
from fidelity.races.truth import TIMES, truth

pytestmark = pytest.mark.exhaustive


def test_a_race_fails_under_its_delay_alone() -> None:
    (race,) = programs("test_key_set_twice")
    found = truth(race)
    assert {kind: len(runs) for kind, runs in found.runs.items()} == {"plain": TIMES, "late": TIMES}
    assert found.mistakes() == []


def test_a_legal_program_passes_under_a_sleep_at_any_place() -> None:
    (legal,) = programs("test_key_of_each_epoch")
    found = truth(legal)
    assert len(found.runs["place"]) > 20
    assert found.mistakes() == []


def test_a_race_called_legal_is_a_mistake() -> None:
    (race,) = programs("test_lock_file")
    # Without one of the two delays that it needs.
    wrong = type(race)(race.name, race.ranks, True, delays=race.delays[:1])
    found = truth(wrong)
    assert {kind for kind, _ in found.mistakes()} == {"late"}
    assert len(found.mistakes()) == TIMES
