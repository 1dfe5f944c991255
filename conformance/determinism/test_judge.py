"""The judges of training loops on hand-made histories."""

from __future__ import annotations

from dataclasses import replace

from ddp_conformance.determinism import judge
from ddp_conformance.determinism.history import (
    DeviceMemory,
    LoopLoss,
    LoopParameters,
    LoopStep,
    Sketch,
)

STEP = LoopStep(0, "whole", 0, (3, 1), (("torch", 0.25), ("numpy", 0.5)))
NEXT = replace(STEP, epoch=1, ids=(2, 0))
BIAS, WEIGHT = Sketch("bias", "aa", 1.0, 0.5), Sketch("weight", "bb", 2.0, -1.5)
NEARLY = Sketch("weight", "cc", 2.0, -1.50002)
END = LoopParameters(0, "whole", "end", (BIAS, WEIGHT))
BEGIN = replace(END, when="begin")
WHOLE = (STEP, NEXT, END)


def again(*records: LoopStep | LoopParameters) -> tuple[LoopStep | LoopParameters, ...]:
    return tuple(replace(record, run="again") for record in records)


def texts(violations: object) -> list[str]:
    assert isinstance(violations, tuple)
    return [str(violation) for violation in violations]


def test_the_first_other_step_is_named() -> None:
    other = again(STEP, replace(NEXT, ids=(0, 2)), END)
    assert texts(judge.judge_same_run([*WHOLE, *other], "again")) == [
        "again: rank 0, step 1: samples [0, 2] in epoch 1, not samples [2, 0] in epoch 1"
    ]


def test_a_run_that_is_too_short_is_named() -> None:
    assert texts(judge.judge_same_run([*WHOLE, *again(STEP, END)], "again")) == [
        "again: rank 0, step 1: nothing, not samples [2, 0] in epoch 1"
    ]


def test_other_parameters_are_named() -> None:
    other = again(STEP, NEXT, replace(END, sketches=(BIAS, NEARLY)))
    assert texts(judge.judge_same_run([*WHOLE, *other], "again")) == [
        "again: rank 0 ends with another weight"
    ]
    assert judge.judge_same_run([*WHOLE, *other], "again", tolerance=1e-4) == ()
    assert len(judge.judge_same_run([*WHOLE, *other], "again", tolerance=1e-6)) == 1
    lost = again(STEP, NEXT, replace(END, sketches=(BIAS,)))
    assert len(judge.judge_same_run([*WHOLE, *lost], "again", tolerance=1e-4)) == 1


def test_a_loop_without_steps_is_no_pass() -> None:
    assert texts(judge.judge_same_run([], "again")) == ["the loop made no step"]


def test_a_random_state_that_is_lost_is_named_once() -> None:
    drew = replace(STEP, draws=(("torch", 0.75), ("numpy", 0.5)))
    other = again(drew, replace(drew, epoch=1))
    assert judge.judge_random_states([*WHOLE, *again(STEP, NEXT)], "again") == ()
    assert texts(judge.judge_random_states([*WHOLE, *other], "again")) == [
        "epoch 0: again: rank 0, step 0: torch goes on from another state"
    ]


def test_losses_agree_within_the_tolerance() -> None:
    whole, alone = LoopLoss(0, "whole", 0, 0.5004), LoopLoss(0, "alone", 0, 0.5)
    assert judge.judge_same_losses([whole, alone], 1e-3) == ()
    assert texts(judge.judge_same_losses([whole, alone], 1e-4)) == [
        "epoch 0: rank 0 reports 0.5004, one process alone 0.5"
    ]
    assert len(judge.judge_same_losses([alone], 1e-3)) == 1


def test_wrong_seeds_are_named() -> None:
    start = replace(BEGIN, rank=1, sketches=())
    other = replace(STEP, rank=1, ids=(3, 1), draws=(("torch", 0.25), ("numpy", 0.2)))
    assert texts(judge.judge_seeds([BEGIN, start, STEP, other], 41)) == [
        "rank 1 begins with other parameters than rank 0",
        "epoch 0: 2 samples are repeated, index 1 by ranks 0 and 1: no common order",
        "ranks 0 and 1 draw the same from torch",
    ]


def test_memory_on_another_device_is_named() -> None:
    own = [DeviceMemory(0, 0, 0, 512), DeviceMemory(1, 1, 1, 512), DeviceMemory(0, 0, 1, 0)]
    assert judge.judge_own_device(own) == ()
    assert texts(judge.judge_own_device([*own, DeviceMemory(1, 1, 0, 64)])) == [
        "rank 1 of GPU 1 allocated 64 bytes on 0"
    ]
    assert texts(judge.judge_own_device([])) == ["no rank used a GPU"]


# ------------------------------------------------------------------ what is not there


def test_steps_that_the_other_run_lacks_have_no_random_state() -> None:
    assert texts(judge.judge_random_states([*WHOLE, *again(STEP)], "again")) == [
        "epoch 1: again: rank 0, step 1: no such step is made"
    ]
    assert texts(judge.judge_random_states(WHOLE, "again")) == [
        "epoch 0: again: rank 0, step 0: no such step is made"
    ]
    assert texts(judge.judge_random_states([], "again")) == ["the loop made no step"]


def test_losses_that_one_side_lacks_are_named() -> None:
    alone = [LoopLoss(0, "alone", epoch, 0.5) for epoch in (0, 1)]
    whole = [LoopLoss(rank, "whole", epoch, 0.5) for rank in (0, 1) for epoch in (0, 1)]
    assert texts(judge.judge_same_losses([*alone, *whole[:3]], 1e-4)) == [
        "epoch 1: rank 1 reports nothing, one process alone 0.5"
    ]
    assert texts(judge.judge_same_losses([alone[0], *whole[:3]], 1e-4)) == [
        "epoch 1: rank 0 reports 0.5, one process alone nothing"
    ]


def test_a_loss_that_is_no_number_matches_itself_alone() -> None:
    nan = float("nan")
    lost = [LoopLoss(0, "whole", 0, nan), LoopLoss(0, "alone", 0, nan)]
    assert judge.judge_same_losses(lost, 1e-4) == ()
    assert len(judge.judge_same_losses([lost[0], LoopLoss(0, "alone", 0, 0.5)], 1e-4)) == 1


def test_beginnings_are_compared_with_the_first_rank_that_has_one() -> None:
    others = [replace(BEGIN, rank=2, sketches=()), replace(BEGIN, rank=1)]
    steps = [replace(STEP, rank=r, ids=(r,), draws=()) for r in (0, 1, 2)]
    assert texts(judge.judge_seeds([*others, *steps], 41)) == [
        "rank 0 reports no initial parameters",
        "rank 2 begins with other parameters than rank 1",
    ]


def test_equal_parameters_that_are_no_numbers_are_equal() -> None:
    starts = [replace(BEGIN, rank=r, sketches=(replace(BIAS, norm=float("nan")),)) for r in (0, 1)]
    steps = [replace(STEP, rank=r, ids=(r,), draws=()) for r in (0, 1)]
    assert judge.judge_seeds([*starts, *steps], 41) == ()


def test_a_loop_without_steps_shows_no_seeds() -> None:
    assert texts(judge.judge_seeds([BEGIN], 41)) == ["the loop made no step"]


def test_padding_is_allowed_though_a_rank_makes_no_step() -> None:
    steps = [replace(STEP, ids=(0, 0), draws=()), replace(BEGIN, rank=1)]
    assert judge.judge_seeds([BEGIN, *steps], 41) == ()


def test_runs_that_report_no_last_parameters_are_no_pass() -> None:
    both = [*WHOLE, *again(*WHOLE)]
    named = ["again: rank 0 reports no final parameters"]
    for lost in (END, again(END)[0]):
        assert texts(judge.judge_same_run([r for r in both if r != lost], "again")) == named


def test_a_parameter_or_a_rank_that_only_the_other_run_has_is_named() -> None:
    more = again(STEP, NEXT, replace(END, sketches=(BIAS, WEIGHT, replace(BIAS, name="new"))))
    assert texts(judge.judge_same_run([*WHOLE, *more], "again")) == [
        "again: rank 0 ends with another new"
    ]
    foreign = again(replace(STEP, rank=1))
    text = texts(judge.judge_same_run([*WHOLE, *again(*WHOLE), *foreign], "again"))[0]
    assert text == "again: rank 1, step 0: samples [3, 1] in epoch 0, not nothing"


def test_an_infinite_parameter_is_near_none_but_itself() -> None:
    infinite = replace(WEIGHT, digest="ff", norm=float("inf"))
    other = again(STEP, NEXT, replace(END, sketches=(BIAS, infinite)))
    assert len(judge.judge_same_run([*WHOLE, *other], "again", tolerance=1e-4)) == 1
    end = replace(END, sketches=(BIAS, infinite))
    both = [STEP, NEXT, end, *again(STEP, NEXT, end)]
    assert judge.judge_same_run(both, "again", tolerance=1e-4) == ()
