"""The judges of checkpoints on hand-made histories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ddp_conformance.determinism import judge_checkpoints as judge
from ddp_conformance.determinism.history import LoopParameters, LoopSaved, LoopStep, Sketch

WEIGHT, OTHER = Sketch("weight", "aa", 1.0, 0.5), Sketch("weight", "bb", 1.0, 0.5)


def run(name: str, *steps: tuple[int, ...], end: Sketch = WEIGHT, rank: int = 0) -> list[Any]:
    """Steps of one epoch, and final parameters."""
    made = [LoopStep(rank, name, 0, ids, ()) for ids in steps]
    return [*made, LoopParameters(rank, name, "end", (end,))]


def texts(violations: Sequence[object]) -> list[str]:
    return [str(violation) for violation in violations]


# ------------------------------------------------------------------ DET-08


WHOLE = [*run("whole", (1, 2), (0,)), *run("whole", (3,), (4,), rank=1)]


def test_saving_that_changes_nothing_passes() -> None:
    saving = [*run("saving", (1, 2), (0,)), *run("saving", (3,), (4,), rank=1)]
    assert judge.judge_saving([*WHOLE, *saving]) == ()


def test_what_saving_changes_is_named() -> None:
    other = [*run("saving", (1, 2), (0,)), *run("saving", (3,), (4,), end=OTHER, rank=1)]
    assert texts(judge.judge_saving([*WHOLE, *other])) == [
        "saving: rank 1 ends with another weight"
    ]
    fewer = [*run("saving", (1, 2)), *run("saving", (3,), (4,), rank=1)]
    assert texts(judge.judge_saving([*WHOLE, *fewer])) == [
        "saving: rank 0, step 1: nothing, not samples [0] in epoch 0"
    ]


def test_random_numbers_that_saving_draws_are_no_change() -> None:
    drew = [replace(one, draws=(("torch", 0.5),)) for one in run("saving", (1, 2), (0,))[:2]]
    history = [*run("whole", (1, 2), (0,)), *drew, *run("saving")]
    assert judge.judge_saving(history) == ()


def test_a_path_where_nothing_lies_is_named() -> None:
    saved = [LoopSaved(0, "saving", "save_at[0]", 2), LoopSaved(0, "saving", "save_at[1]", 0)]
    assert judge.unsaved(saved) == "left nothing at the path of Leg.save_at[1]"
    assert judge.unsaved(saved[:1]) == ""
