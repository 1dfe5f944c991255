"""A few programs of ``make parity``: wrong ones are red at the right tensor, right ones green."""

from __future__ import annotations

from fidelity.parity.__main__ import BENIGN, FAULTS, is_right
from fidelity.parity.running import Size, judgements

PROGRAMS = {
    FAULTS: ("gradients_scaled_by_1e_4", "tied_weight_split"),
    BENIGN: ("relu_near_zero", "key_biases", "stages_of_a_pipeline"),
}


def test_wrong_programs_are_red_and_right_ones_green() -> None:
    names = [f"{file}::test_{name}" for file, names in PROGRAMS.items() for name in names]
    found = judgements(names, Size(1))
    file_of = {name: file for file, names in PROGRAMS.items() for name in names}
    assert {one.program for one in found if one.ratios} == {*file_of}
    assert [one for one in found if not is_right(file_of[one.program], one)] == []
