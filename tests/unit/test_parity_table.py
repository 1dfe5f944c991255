"""What the table of programs with known truth makes of how they were judged."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from fidelity.parity.__main__ import BEGIN, BENIGN, DOCUMENT, END, FAULTS, Evidence, is_right
from fidelity.parity.running import PROGRAMS, Judgement, Size

WRONG = ("gradients: head.weight", "gradients: embedding.weight")
RED = Judgement("tied_weight_split", "float32", 0, "two", "failed", {"eps": 9.0}, WRONG, True, "")
GREEN = replace(RED, program="ddp", outcome="passed", wrong=(), is_named=False)


@pytest.mark.parametrize(
    ("file", "found", "right"),
    [
        (FAULTS, RED, True),
        (FAULTS, replace(RED, is_named=False), False),
        (FAULTS, replace(RED, wrong=WRONG[:1]), False),
        (FAULTS, replace(RED, outcome="error"), False),
        (FAULTS, replace(RED, outcome="passed"), False),
        (FAULTS, replace(RED, world="one", outcome="failed", ratios={}), False),
        (FAULTS, replace(RED, world="one", outcome="passed", ratios={}), True),
        (BENIGN, GREEN, True),
        (BENIGN, replace(GREEN, outcome="failed"), False),
        (BENIGN, replace(GREEN, outcome="did not run"), False),
    ],
)
def test_a_fault_is_red_at_its_tensors_and_all_else_green(
    file: str, found: Judgement, right: bool
) -> None:
    assert is_right(file, found) is right


def test_the_nearest_to_the_limit_come_first() -> None:
    evidence = Evidence()
    for name, ratios in {"a": (30.0, 20.0), "b": (90.0, 25.0), "c": (99.0, 50.0)}.items():
        for file in (FAULTS, BENIGN):
            evidence.add(
                file, Size(2), [replace(RED, program=name, ratios={"eps": r}) for r in ratios]
            )
    assert evidence.nearest(FAULTS) == ["a", "b", "c"]
    assert evidence.nearest(BENIGN) == ["c", "b", "a"]


@pytest.mark.parametrize("file", [FAULTS, BENIGN])
def test_each_program_is_in_the_table(file: str) -> None:
    names = re.findall(r"^def test_(\w+)", (PROGRAMS / file).read_text(), re.MULTILINE)
    table = DOCUMENT.read_text().partition(BEGIN)[2].partition(END)[0]
    assert len(names) >= (12 if file == FAULTS else 24)
    assert [name for name in names if f"| {name.replace('_', ' ')} |" not in table] == []
