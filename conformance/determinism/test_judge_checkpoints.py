"""The judges of checkpoints on hand-made histories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddp_conformance.determinism import judge_checkpoints as judge
from ddp_conformance.determinism.checkpoints import MOST, KeptCheckpoint, chosen, files_of
from ddp_conformance.determinism.history import (
    LoopParameters,
    LoopRaised,
    LoopSaved,
    LoopStep,
    Sketch,
)
from hypothesis import given
from hypothesis import strategies as st

WEIGHT, OTHER = Sketch("weight", "aa", 1.0, 0.5), Sketch("weight", "bb", 1.0, 0.5)


def run(name: str, *steps: tuple[int, ...], end: Sketch = WEIGHT, rank: int = 0) -> list[Any]:
    """Steps of one epoch, and final parameters."""
    made = [LoopStep(rank, name, 0, ids, ()) for ids in steps]
    return [*made, LoopParameters(rank, name, "end", (end,))]


def texts(violations: Sequence[object]) -> list[str]:
    return [str(violation) for violation in violations]


# ------------------------------------------------------------------ DET-07

BEGIN = LoopParameters(0, "resumed", "begin", (WEIGHT,))


def resumed(name: str, *, begin: Sketch = WEIGHT, end: Sketch = WEIGHT) -> list[Any]:
    """Two steps, the same on both ranks."""
    history: list[Any] = []
    for rank in (0, 1):
        history.append(replace(BEGIN, rank=rank, run=name, sketches=(begin,)))
        history += run(name, (rank,), (2 + rank,), end=end, rank=rank)
    return history


ALL_FILES = resumed("resumed")
REFUSED = [LoopRaised(rank, "without a.pt", "OSError: no a.pt") for rank in (0, 1)]


def test_refused_by_all_passes() -> None:
    assert judge.judge_incomplete([*ALL_FILES, *REFUSED]) == ()
    assert judge.unread([*ALL_FILES, *REFUSED]) == ""


def test_a_file_that_makes_no_difference_passes() -> None:
    history = [*ALL_FILES, *resumed("without a.pt"), LoopRaised(0, "without any file", "")]
    assert judge.judge_incomplete([*history, *resumed("without b.pt")]) == ()
    assert judge.unread([*history, *resumed("without b.pt")]) == ""


def test_a_difference_without_a_file_is_named() -> None:
    other = resumed("without a.pt", begin=OTHER, end=OTHER)
    del other[2]  # a step of rank 0
    assert texts(judge.judge_incomplete([*ALL_FILES, *other])) == [
        "without a.pt: rank 0 begins with another weight",
        "without a.pt: rank 1 begins with another weight",
        "without a.pt: rank 0, step 1: nothing, not samples [2] in epoch 0",
        "without a.pt: rank 0 ends with another weight",
        "without a.pt: rank 1 ends with another weight",
    ]


def test_a_rank_that_goes_on_where_another_raises_is_named() -> None:
    half = [*REFUSED[:1], *(one for one in resumed("without a.pt") if one.rank == 1)]
    assert texts(judge.judge_incomplete([*ALL_FILES, *half])) == [
        "without a.pt: rank 1 goes on, and rank 0 raises OSError: no a.pt"
    ]


def test_a_rank_that_raises_after_a_step_is_named() -> None:
    late = [*REFUSED, *run("without a.pt", (0,), rank=1)[:1]]
    assert texts(judge.judge_incomplete([*ALL_FILES, *late])) == [
        "without a.pt: rank 1 makes 1 step before it raises OSError: no a.pt"
    ]


def test_a_checkpoint_that_is_not_read_is_no_pass() -> None:
    reason = "goes on as well without any file of its checkpoint"
    assert judge.unread([*ALL_FILES, *resumed("without a.pt")]) == reason
    some = [*resumed("without a.pt"), *resumed("without b.pt"), *resumed("without any file")]
    assert judge.unread([*ALL_FILES, *some]) == reason
    assert judge.judge_incomplete([*ALL_FILES, *some]) == ()


def test_the_run_without_any_file_may_begin_anew() -> None:
    some = [*resumed("without a.pt"), *resumed("without b.pt")]
    anew = resumed("without any file", begin=OTHER)
    assert judge.judge_incomplete([*ALL_FILES, *some, *anew]) == ()
    assert judge.unread([*ALL_FILES, *some, *anew]) == ""


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40))
def test_at_most_eight_files_the_first_the_last_and_the_largest(sizes: list[int]) -> None:
    places = chosen(sizes)
    assert places == sorted(set(places))
    assert len(places) <= MOST
    assert len(places) >= min(len(sizes), MOST - 1)
    assert {0, len(sizes) - 1} <= set(places)
    assert max(sizes) in {sizes[place] for place in places}


def test_files_are_left_out_in_turn_and_brought_back(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    for name in ("a.pt", "below/b.pt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    kept = KeptCheckpoint(folder)
    assert kept.some_files() == ["a.pt", "below/b.pt"]
    kept.leave_out("a.pt")
    assert files_of(folder) == [folder / "below/b.pt"]
    kept.leave_out("below/b.pt")
    assert files_of(folder) == [folder / "a.pt"]
    kept.leave_out("")
    assert files_of(folder) == []
    file = tmp_path / "one.pt"
    file.write_text("all")
    kept = KeptCheckpoint(file)
    assert kept.some_files() == ["one.pt"]
    kept.leave_out("one.pt")
    assert files_of(file) == []
    assert KeptCheckpoint(tmp_path / "nothing").some_files() == []


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
