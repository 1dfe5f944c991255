"""The judges of the lifecycle guarantees on hand-made histories."""

from __future__ import annotations

from dataclasses import replace

from ddp_conformance.framework.allowance import Terms
from ddp_conformance.launched.endings import in_order
from ddp_conformance.launched.history import (
    Chose,
    Compiled,
    Ended,
    Fetched,
    Happened,
    Left,
    Made,
    Optimized,
    Saved,
)
from ddp_conformance.lifecycle import judge

DONE = (Ended(0, 0, 0, True), Ended(1, 1, 0, True))

STEP = Optimized(
    rank=0,
    step=1,
    rate=0.1,
    wrapped=True,
    live=("weight", "bias"),
    owned=("weight", "bias"),
    foreign=0,
    changed=2,
    digest="a",
    sums=(1.0, 3.0, 0.5, 0.5),
)
STEPS = (STEP, replace(STEP, rank=1))

FETCHED = Fetched(0, 0, 0, 5, (0, 2, 4), 3, complete=True, trained=True)


def texts(found: object) -> list[str]:
    assert isinstance(found, tuple)
    return [str(violation) for violation in found]


# ------------------------------------------------------------------ LIF-01


def test_the_first_to_end_is_named_first() -> None:
    history = [
        Happened(0, "wrap", "train.py:9"),
        Ended(0, 1, 1, False, "RuntimeError: closed", "DDP construction", "train.py:9"),
        Ended(1, 0, -11, False, "", "construction of Net", "net.py:3 in __init__"),
    ]
    assert texts(judge.judge_finished(history)) == [
        "rank 1 died of SIGSEGV in construction of Net at net.py:3 in __init__; "
        "its last stage was its start",
        "rank 0 raised RuntimeError: closed in DDP construction at train.py:9; "
        "its last stage was wrap at train.py:9",
    ]


def test_a_signal_is_the_cause_of_what_the_peers_raised_before_its_end_was_seen() -> None:
    raised, died = Ended(0, 0, 1, False, "RuntimeError: closed"), Ended(1, 1, -11, False)
    assert in_order([raised, died]) == [died, raised]
    aborted = Ended(1, 1, -6, False)
    assert in_order([aborted, raised]) == [raised, aborted]


def test_the_rank_that_left_its_peers_is_named() -> None:
    lost = Ended(
        1, 1, 1, False, "RuntimeError: Connection closed by peer [::1]:4", site="train.py:9"
    )
    (text,) = texts(judge.judge_finished([STEP, *STEPS, DONE[0], lost]))
    assert text.endswith("; rank 0 had come to its end (optimizer steps: 2)")
    (text,) = texts(judge.judge_finished([*STEPS, DONE[0], replace(lost, error="ValueError: no")]))
    assert "rank 0" not in text


def test_an_exit_code_of_0_alone_is_no_end() -> None:
    history = [*STEPS, DONE[0], Ended(1, 1, 0, False)]
    (text,) = texts(judge.judge_finished(history))
    assert "rank 1 left with exit code 0 before its entry had come to its end" in text


# ------------------------------------------------------------------ LIF-02

PADS = frozenset({"pads"})


def test_shares_pass_with_the_padding_that_is_declared() -> None:
    history = [FETCHED, replace(FETCHED, rank=1, indices=(1, 3, 0))]
    assert judge.judge_deliveries(history, 2, Terms(PADS)) == ()
    (text,) = texts(judge.judge_deliveries(history, 2, Terms(frozenset())))
    assert text == "epoch 0: 1 of 5 samples are trained on once more; index 0 by ranks 0 and 1"


def test_the_whole_data_set_on_each_rank_fails_with_the_early_loader() -> None:
    history = [
        Happened(1, "loader", "train.py:5"),
        Happened(1, "init_process_group", "train.py:7"),
        replace(FETCHED, indices=(0, 1, 2, 3, 4)),
        replace(FETCHED, rank=1, indices=(4, 3, 2, 1, 0)),
    ]
    (text,) = texts(judge.judge_deliveries(history, 2, Terms(PADS)))
    assert "5 of 5 samples" in text
    assert "rank 1 made a loader at train.py:5 before init_process_group at train.py:7" in text


def test_what_is_missing_counts_in_whole_passes_only() -> None:
    half = replace(FETCHED, indices=(0,), complete=False)
    assert judge.judge_deliveries([half, replace(half, rank=1, indices=(1,))], 2, Terms(PADS)) == ()
    (text,) = texts(judge.judge_deliveries([replace(half, complete=True)], 2, Terms(PADS)))
    assert "4 of 5 samples are trained on by no rank, first index 1" in text


def test_batches_that_are_dropped_may_be_declared() -> None:
    history = [
        replace(FETCHED, indices=(0, 2), batch=2),
        replace(FETCHED, rank=1, indices=(1, 3), batch=2),
    ]
    assert judge.judge_deliveries(history, 2, Terms(frozenset({"drops"}))) == ()
    assert len(judge.judge_deliveries(history, 2, Terms(PADS))) == 1


def test_passes_without_a_step_are_not_judged_and_not_counted() -> None:
    looked_at = replace(FETCHED, trained=False, indices=(0, 1, 2, 3, 4))
    share = replace(FETCHED, loader=1, rank=1, indices=(1, 3, 0))
    history = [looked_at, FETCHED, replace(looked_at, rank=1), share]
    assert judge.judge_deliveries(history, 2, Terms(PADS)) == ()


# ------------------------------------------------------------------ LIF-03


def test_equal_results_pass() -> None:
    history = [*STEPS, FETCHED, Made(0, "model.pt", "f0"), *DONE]
    assert judge.judge_same_results(history, list(reversed(history))) == ()


def test_other_parameters_files_and_ends_are_named() -> None:
    base = [STEP, Made(0, "model.pt", "f0"), *DONE]
    other = [replace(STEP, digest="b"), DONE[0], Ended(1, 0, -9, False)]
    assert texts(judge.judge_same_results(base, other)) == [
        "end of rank 1: rank 1 died of SIGKILL, undisturbed rank 1 ended with exit code 0",
        "rank 0, parameters after step 1: b, undisturbed a",
        "file model.pt: none, undisturbed f0",
    ]


# ------------------------------------------------------------------ LIF-04


def test_sharded_parameters_are_idle_only_if_no_ranks_part_changes() -> None:
    parts = [replace(step, sharded=True, changed=int(step.rank == 0)) for step in STEPS]
    assert judge.judge_optimizer(parts) == ()
    (text,) = texts(judge.judge_optimizer([replace(step, changed=0) for step in parts]))
    assert text == "no parameter changed in step 1, on ranks 0 and 1"
    (text,) = texts(judge.judge_optimizer([replace(step, sharded=False) for step in parts]))
    assert text == "no parameter changed in step 1, on rank 1"


def test_a_step_that_changes_nothing_is_named() -> None:
    history = [replace(s, changed=0, step=n) for s in STEPS for n in (1, 2, 3)]
    assert texts(judge.judge_optimizer(history)) == [
        "no parameter changed in step 1, nor in the 2 after it, on ranks 0 and 1"
    ]


def test_a_rate_of_0_rightly_changes_nothing() -> None:
    assert judge.judge_optimizer([replace(STEP, changed=0, rate=0.0)]) == ()


def test_parameters_without_an_owner_and_the_order_are_named() -> None:
    history = [
        Happened(0, "optimizer", "train.py:906"),
        Happened(0, "wrap", "train.py:925"),
        replace(STEP, owned=("bias",), foreign=1),
    ]
    when = "made at train.py:906 before the wrap at train.py:925, on rank 0"
    assert texts(judge.judge_optimizer(history)) == [
        f"the optimizer lacks 1 of 2 live parameters (weight and so on), {when}",
        f"the optimizer has 1 parameters of no wrapped module, {when}",
    ]


def test_two_optimizers_share_the_parameters() -> None:
    history = [replace(STEP, owned=("bias",)), replace(STEP, step=2, owned=("weight",))]
    assert judge.judge_optimizer(history) == ()


def test_without_a_wrapper_only_the_change_is_judged() -> None:
    assert judge.judge_optimizer([replace(STEP, wrapped=False, foreign=3)]) == ()


# ------------------------------------------------------------------ LIF-05

COMPILED = [*STEPS, Compiled(0, 1), Compiled(1, 2)]


def test_rounding_is_no_difference() -> None:
    eager = [replace(step, sums=(1.0 + 1e-6, 3.0, 0.5, 0.5)) for step in STEPS]
    assert judge.judge_compiled(COMPILED, eager) == ()


def test_other_parameters_than_eager_ones_are_named() -> None:
    eager = [STEP, replace(STEP, rank=1, sums=(1.0, 3.0, 0.4, 0.4))]
    assert texts(judge.judge_compiled(COMPILED, eager)) == [
        "rank 1: bias differs after step 1 from eager training"
    ]


def test_nothing_compiled_is_no_pass() -> None:
    history = [*STEPS, Compiled(0, 0), *DONE]
    assert texts(judge.judge_compiled(history, STEPS)) == [
        "nothing was compiled on rank 0",
        "nothing was compiled on rank 1",
    ]


def test_names_of_a_wrapper_are_named() -> None:
    assert texts(judge.judge_checkpoint_names([Saved(0, "a.pt", ("_orig_mod.w",))])) == [
        "a.pt, saved by rank 0, has 1 names that the bare module has not, the first is _orig_mod.w"
    ]
    assert judge.judge_checkpoint_names([Saved(0, "a.pt", ())]) == ()


# ------------------------------------------------------------------ LIF-06 to LIF-09


def test_what_is_left_is_named_once() -> None:
    assert texts(judge.judge_nothing_left([Left(0, "a thread"), Left(1, "a thread")])) == [
        "a thread is left on ranks 0 and 1"
    ]
    assert judge.judge_nothing_left(DONE) == ()


def test_a_death_must_show_in_some_exit_code() -> None:
    assert judge.judge_death_shows([Ended(0, 0, 0, False), Ended(1, 1, 1, False)]) == ()
    hidden = [DONE[0], Ended(1, 1, 0, False, "ValueError: no data")]
    assert texts(judge.judge_death_shows(hidden)) == [
        "no rank failed: rank 0 ended with exit code 0, "
        "rank 1 ended with exit code 0 after ValueError: no data"
    ]
    assert len(judge.judge_death_shows([Ended(0, 0, 0, False), Ended(1, 1, None, False)])) == 1


def test_a_rank_that_had_to_be_stopped_is_named_with_the_cause() -> None:
    history = [
        Ended(1, 0, -9, False),
        Ended(0, 1, None, False, "", "backward", "train.py:33 in fit"),
    ]
    assert texts(judge.judge_ended_in_time(history)) == [
        "rank 0 had not ended and was stopped in backward at train.py:33 in fit, "
        "after rank 1 died of SIGKILL"
    ]
    assert judge.judge_ended_in_time(DONE) == ()


def test_choices_must_agree() -> None:
    history = [Chose(0, "backend", "nccl"), Chose(1, "backend", "gloo"), *DONE]
    assert texts(judge.judge_agreement(history)) == [
        "the backend differs: rank 0: nccl; rank 1: gloo"
    ]
    assert texts(judge.judge_agreement([history[0], *DONE])) == [
        "the backend differs: rank 0: nccl; rank 1: none"
    ]
    assert judge.judge_agreement([history[0], Chose(1, "backend", "nccl"), *DONE]) == ()


# ------------------------------------------------------------------ what is not there


def test_a_run_of_no_rank_is_no_pass() -> None:
    nothing = ["the end of no rank was seen"]
    assert texts(judge.judge_finished([])) == nothing
    assert texts(judge.judge_ended_in_time([])) == nothing
    assert texts(judge.judge_death_shows([])) == ["no rank failed: the end of no rank was seen"]


def test_a_signal_without_a_name_is_shown_by_its_number() -> None:
    (text,) = texts(judge.judge_finished([Ended(0, 0, -35, False)]))
    assert text.startswith("rank 0 died of signal 35; ")


def test_an_index_of_no_sample_does_not_make_up_for_a_lost_one() -> None:
    history = [FETCHED, replace(FETCHED, rank=1, indices=(1, 7))]
    assert texts(judge.judge_deliveries(history, 2, Terms(PADS))) == [
        "epoch 0: index 7 is none of 5 samples, for rank 1",
        "epoch 0: 1 of 5 samples are trained on by no rank, first index 3",
    ]


def test_data_sets_of_different_sizes_are_named_with_their_ranks() -> None:
    history = [FETCHED, *(replace(FETCHED, rank=rank, size=6) for rank in (1, 2))]
    assert texts(judge.judge_deliveries(history, 3, Terms(PADS))) == [
        "epoch 0: the ranks have data sets of different sizes: "
        "rank 0: 5 samples; ranks 1 and 2: 6 samples"
    ]


def test_samples_and_files_are_compared_to_their_end() -> None:
    long = replace(FETCHED, indices=(0, 1, 2, 3, 4, 5, 6, 7))
    base = [long, Made(0, "a", "00000000f0"), *DONE]
    other = [replace(long, indices=(*long.indices[:7], 9)), Made(0, "a", "00000000f1"), *DONE]
    assert texts(judge.judge_same_results(base, other)) == [
        "rank 0, samples of loader 0, pass 0: after 7 samples [9], undisturbed after 7 samples [7]",
        "file a: 00000000f1, undisturbed 00000000f0",
    ]


def test_a_rate_that_is_no_number_is_meant_to_change_something() -> None:
    assert len(judge.judge_optimizer([replace(STEP, changed=0, rate=float("nan"))])) == 1


def test_a_step_that_only_eager_training_makes_is_named() -> None:
    eager = [*STEPS, replace(STEP, step=2)]
    assert texts(judge.judge_compiled(COMPILED, eager)) == [
        "rank 0 has another step 2 without torch.compile"
    ]
    assert texts(judge.judge_compiled(COMPILED[2:], [])) == [
        "no optimizer step was made, compiled or not"
    ]


def test_what_is_no_number_matches_itself_alone() -> None:
    nan, inf = float("nan"), float("inf")
    lost = [replace(step, sums=(nan, nan, 0.5, 0.5)) for step in STEPS]
    assert judge.judge_compiled([*lost, *COMPILED[2:]], lost) == ()
    assert len(judge.judge_compiled(COMPILED, lost)) == 2
    huge = [replace(step, sums=(1.0, inf, 0.5, 0.5)) for step in STEPS]
    other = [replace(step, sums=(2.0, inf, 0.5, 0.5)) for step in STEPS]
    assert len(judge.judge_compiled([*huge, *COMPILED[2:]], other)) == 2


def test_ranks_may_choose_another_backend_together() -> None:
    both = [Chose(rank, "backend", name) for rank in (0, 1) for name in ("gloo", "nccl")]
    assert judge.judge_agreement([*both, *DONE]) == ()
    assert texts(judge.judge_agreement([*both[:3], *DONE])) == [
        "the backend differs: rank 0: gloo, then nccl; rank 1: gloo"
    ]
