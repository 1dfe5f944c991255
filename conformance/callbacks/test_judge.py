"""The judges of the callback guarantees on hand-made histories."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from ddp_conformance.callbacks import judge
from ddp_conformance.callbacks.history import LoopEnd, StepEnd, Traced, Tripped
from ddp_conformance.callbacks.stepping import in_text
from ddp_conformance.framework.history import Collective, Failed, Record
from ddp_conformance.launched.history import Ended
from ddp_conformance.lifecycle.subjects import DEATHS
from ddp_conformance.lockstep.lockstep import END

ALL = (0, 1)


def call(rank: int, number: int, functions: str, what: str = "allreduce float32[]") -> Traced:
    return Traced(rank, "0", ALL, number, what, functions, f"loop.py:{number + 1}")


def test_a_metric_that_meets_a_gradient_is_named() -> None:
    history = [call(0, 0, "log < step"), call(0, 1, "backward"), call(1, 0, "backward")]
    (violation,) = judge.judge_same_trace(history)
    assert str(violation) == (
        "collective 0 of ranks 0 and 1: rank 0 allreduce float32[] in log < step (loop.py:1); "
        "rank 1 allreduce float32[] in backward (loop.py:1)"
    )


def test_a_collective_too_many_is_named() -> None:
    (violation,) = judge.judge_same_trace([call(0, 0, "f"), call(1, 0, "f"), call(1, 1, "f")])
    assert "collective 1 of ranks 0 and 1: rank 0 makes none; rank 1 allreduce" in str(violation)


def test_a_collective_that_is_recorded_twice_is_one_too_many() -> None:
    (violation,) = judge.judge_same_trace([call(0, 0, "f"), call(0, 0, "f"), call(1, 0, "f")])
    assert "collective 1 of ranks 0 and 1: rank 0 allreduce" in str(violation)


def test_a_collective_of_no_line_of_the_users_is_named_without_one() -> None:
    (violation,) = judge.judge_same_trace([Traced(0, "0", ALL, 0, "barrier")])
    assert str(violation) == "collective 0 of ranks 0 and 1: rank 0 barrier; rank 1 makes none"


def test_lines_alone_are_no_evidence() -> None:
    history = [Traced(r, "0", ALL, 0, "barrier", "", f"loop.py:{r}") for r in ALL]
    assert judge.judge_same_trace(history) == ()


def test_ranks_outside_of_a_group_are_not_asked() -> None:
    history = [Traced(r, "pair", (0, 2), 0, "allreduce", "f") for r in (0, 2)]
    assert judge.judge_same_trace(history) == ()


def test_a_difference_in_a_group_is_named_unless_all_ranks_differ_already() -> None:
    in_group = [Traced(r, "pair", (0, 2), 0, "allreduce", f"f{r}") for r in (0, 2)]
    (violation,) = judge.judge_same_trace(in_group)
    assert str(violation).startswith("collective 0 of ranks 0 and 2: ")
    in_all = [Traced(r, "0", (0, 1, 2), 0, "allreduce", f"f{r}") for r in (0, 1, 2)]
    (violation,) = judge.judge_same_trace([*in_group, *in_all])
    assert str(violation).startswith("collective 0 of ranks 0, 1 and 2: ")


def test_different_decisions_are_named() -> None:
    history = [StepEnd(0, 2, (("lr", "0.1"),)), StepEnd(1, 2, (("lr", "0.05"), ("stop", "True")))]
    assert [str(violation) for violation in judge.judge_decisions(history)] == [
        "step 2: lr differs: rank 0: 0.1; rank 1: 0.05",
        "step 2: stop differs: rank 0: nothing; rank 1: True",
    ]


def test_no_decision_is_no_pass() -> None:
    (violation,) = judge.judge_decisions([StepEnd(0, 0), StepEnd(1, 0)])
    assert str(violation) == "no rank reported a decision"


def test_a_flag_and_its_number_are_one_decision() -> None:
    history = [StepEnd(0, 0, (("stop", "True"),)), StepEnd(1, 0, (("stop", "1"),))]
    assert judge.judge_decisions(history) == ()


CUT_OFF: list[Record] = [Collective(0, 0, "allreduce float32[]"), Collective(1, 0, "barrier")]


def test_what_loops_that_were_cut_off_did_not_come_to_is_not_judged() -> None:
    assert judge.judge_decisions([StepEnd(0, 0), *CUT_OFF]) == ()
    ahead = [StepEnd(0, 0, (("lr", "1"),)), *CUT_OFF]
    assert judge.judge_decisions(ahead) == ()
    (violation,) = judge.judge_decisions([*ahead, LoopEnd(1, 0)])
    assert str(violation) == "step 0 is made by rank 0, and not by rank 1"
    (violation,) = judge.judge_decisions([*ahead, StepEnd(1, 0, (("lr", "2"),))])
    assert str(violation) == "step 0: lr differs: rank 0: 1; rank 1: 2"


def test_decisions_are_written_alike_whatever_their_types() -> None:
    one = in_text({"lr": 1, "best": "a.ckpt", "sizes": (1, 2.0), "keep": {"a", "b"}, "at": {1: 2}})
    other = in_text(
        {
            "lr": torch.tensor(1.0),
            "best": Path("a.ckpt"),
            "sizes": np.array([1.0, 2.0]),
            "keep": {"b", "a"},
            "at": {1.0: np.int64(2)},
        }
    )
    assert one == other
    assert in_text({"lr": 0.1}) != in_text({"lr": torch.tensor(0.1)})
    with pytest.raises(TypeError, match=r"an object of type object cannot be compared"):
        in_text({"best": object()})


FIRST: list[Record] = [StepEnd(0, 0), StepEnd(1, 0)]


def test_skipping_together_passes_and_alone_does_not() -> None:
    skip = (("skip", "True"),)
    ends = [LoopEnd(0, 2), LoopEnd(1, 2)]
    together = [*FIRST, Tripped(1, 1), StepEnd(0, 1, skip), StepEnd(1, 1, skip), *ends]
    assert judge.judge_error_path(together) == ()
    alone = [*FIRST, Tripped(1, 1), StepEnd(0, 1), StepEnd(1, 1, skip), *ends]
    (violation,) = judge.judge_error_path(alone)
    assert str(violation) == "rank 1 did not raise after its error in step 1, and left the loop"


def test_a_rank_that_failed_before_its_first_step_has_not_skipped_with_the_others() -> None:
    skip = (("skip", "True"),)
    history = [Tripped(0, 1), StepEnd(0, 0), StepEnd(0, 1, skip), LoopEnd(0, 2), Failed(1, "e")]
    (violation,) = judge.judge_error_path(history)
    assert str(violation) == "rank 0 did not raise after its error in step 1, and left the loop"
    (violation,) = judge.judge_death([*history, *ended(0, 1)], "raises")
    assert str(violation) == "rank 0 ended with exit code 0, although rank 0 raises in step 1"


def test_what_is_waited_for_is_named() -> None:
    history = [
        *FIRST,
        Tripped(1, 1),
        Collective(0, 1, "allreduce float32[]"),
        Collective(1, 1, "barrier"),
    ]
    (violation,) = judge.judge_error_path(history)
    assert str(violation) == (
        "rank 1 did not raise after its error in step 1; at last: rank 0 in allreduce float32[], "
        "rank 1 in barrier"
    )


def test_a_rank_that_left_is_not_named_as_waiting() -> None:
    history = [*FIRST, Tripped(1, 1), LoopEnd(1, 1), Collective(0, 1, "x"), Collective(1, 1, END)]
    (violation,) = judge.judge_error_path(history)
    assert str(violation) == (
        "rank 1 did not raise after its error in step 1, and left the loop; at last: rank 0 in x"
    )


def test_a_rank_that_ends_well_is_named() -> None:
    (violation,) = judge.judge_error_path([*FIRST, Tripped(1, 1), Failed(1, "e"), LoopEnd(0, 4)])
    assert str(violation) == "rank 0 ends well after 4 steps, although rank 1 raised in step 1"


# ---------------------------------------------------------------- processes that die


def ended(*codes: int | None) -> list[Record]:
    return [Ended(rank, rank, code, code == 0) for rank, code in enumerate(codes)]


def test_a_rank_that_does_not_end_is_named_with_the_dead() -> None:
    for death in DEATHS:
        (violation,) = judge.judge_death([*FIRST, Tripped(1, 1), *ended(None, -9)], death)
        assert str(violation) == (
            "rank 0 had not ended and was stopped, after rank 1 died of SIGKILL"
        )


def test_a_rank_that_ends_as_if_all_were_well_is_named() -> None:
    (violation,) = judge.judge_death([*FIRST, Tripped(1, 1), *ended(0, -9)], "is killed")
    assert str(violation) == ("rank 0 ended with exit code 0, although rank 1 is killed in step 1")
    (violation,) = judge.judge_death([*FIRST, Tripped(1, 1), *ended(1, 0)], "raises")
    assert "rank 1 ended with exit code 0" in str(violation)


def test_an_error_may_be_skipped_together_and_a_death_may_not() -> None:
    skip = (("skip", "True"),)
    together: list[Record] = [*FIRST, Tripped(1, 1), StepEnd(0, 1, skip), StepEnd(1, 1, skip)]
    together += [LoopEnd(0, 2), LoopEnd(1, 2), *ended(0, 0)]
    assert judge.judge_death(together, "raises") == ()
    alone = [record for record in together if record not in (LoopEnd(1, 2), StepEnd(1, 1, skip))]
    assert len(judge.judge_death(alone, "raises")) == 2
    assert len(judge.judge_death(together, "is killed")) == 2
