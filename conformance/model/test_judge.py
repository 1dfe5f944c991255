"""The judges of the model guarantees on hand-made histories."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ddp_conformance.framework.history import Record
from ddp_conformance.launched.history import Ended
from ddp_conformance.model import judge
from ddp_conformance.model.history import (
    Decided,
    Gradients,
    OneProcessEnds,
    Overflowed,
    Overwrote,
    Pass,
    State,
    Tied,
    Wrapped,
)

NAMES = ("weight", "bias")
WRAPPED = (Wrapped(0, NAMES, static=False), Wrapped(1, NAMES, static=False))
EQUAL = State(0, "after step 1", (("weight", "a"), ("bias", "b")), (("mean", "c"),))
PASS = Pass(0, 1, 0, NAMES, 1, "a")
ALONE = Gradients(0, 1, True, (("weight", (1.0, -4.0)), ("bias", ())))


def texts(found: object) -> list[str]:
    assert isinstance(found, tuple)
    return [str(violation) for violation in found]


def test_equal_parameters_pass_and_buffers_may_differ_after_a_step() -> None:
    other = replace(EQUAL, rank=1, buffers=(("mean", "x"),))
    assert judge.judge_equal_after_steps([EQUAL, other]) == ()


def test_the_first_parameter_that_differs_is_named() -> None:
    other = replace(EQUAL, rank=1, parameters=(("weight", "x"), ("bias", "x")))
    history = [EQUAL, other, replace(EQUAL, rank=2)]
    assert texts(judge.judge_equal_after_steps(history)) == [
        "after step 1 weight is another on ranks 0 and 2 and rank 1, as are 1 more"
    ]
    assert judge.judge_equal_after_wrapping(history) == ()


def test_right_after_wrapping_buffers_count() -> None:
    begun = replace(EQUAL, moment=judge.WRAPPING)
    history = [begun, replace(begun, rank=1, buffers=(("mean", "x"),))]
    assert texts(judge.judge_equal_after_wrapping(history)) == [
        "after wrapping mean is another on rank 0 and rank 1"
    ]
    assert judge.judge_equal_after_steps(history) == ()


def test_gradients_within_the_tolerance_pass() -> None:
    near = (("weight", (1.0 + 3e-4, -4.0)), ("bias", ()))
    assert judge.judge_gradients([ALONE, replace(ALONE, alone=False, values=near)], 1e-4) == ()


def test_what_rounding_leaves_of_a_gradient_of_zero_passes() -> None:
    """A bias before a normalisation has such a gradient, here beside gradients of 4."""
    alone = replace(ALONE, values=(*ALONE.values, ("norm.bias", (-1.5e-8, 3e-6))))
    rounded = (*ALONE.values, ("norm.bias", (2e-6, -1e-5)))
    assert judge.judge_gradients([alone, replace(alone, alone=False, values=rounded)], 1e-4) == ()
    wrong = replace(alone, alone=False, values=(*ALONE.values, ("norm.bias", (1e-4, 3e-6))))
    assert texts(judge.judge_gradients([alone, wrong], 1e-4)) == [
        "step 1, rank 0: the gradient of norm.bias has 0.0001, of one process -1.5e-08"
    ]


def test_the_value_that_is_furthest_off_is_named() -> None:
    wrong = (("weight", (1.5, -6.0)), ("bias", ()))
    history = [ALONE, Gradients(1, 1, False, wrong)]
    assert texts(judge.judge_gradients(history, 1e-4)) == [
        "step 1, rank 1: the gradient of weight has -6, of one process -4"
    ]


def test_a_gradient_that_one_process_has_not_is_named() -> None:
    extra = (("weight", (1.0, -4.0)), ("bias", (0.5,)))
    (text,) = texts(judge.judge_gradients([ALONE, Gradients(0, 1, False, extra)], 1e-4))
    assert text == "step 1, rank 0: bias has 1 gradient values, one process 0"


def test_what_is_not_a_number_is_no_match() -> None:
    wrong = (("weight", (float("nan"), -4.0)), ("bias", ()))
    assert len(judge.judge_gradients([ALONE, Gradients(0, 1, False, wrong)], 1e-4)) == 1


def test_a_step_that_one_process_does_not_make_is_named() -> None:
    (text,) = texts(judge.judge_gradients([Gradients(0, 1, False, ())], 1e-4))
    assert text == "step 1, rank 0: one process with all samples makes no such step"


def test_steps_are_not_missed_where_the_single_process_broke_off() -> None:
    ended = [Ended(0, 1, 1, False, "OSError: disk is full"), Ended(1, 0, 0, True)]
    steps = [Gradients(rank, step, False, ALONE.values) for rank in (0, 1) for step in (1, 2)]
    assert not judge.judge_gradients([*steps, *ended], 1e-4)
    assert not judge.judge_gradients([ALONE, *steps, *ended], 1e-4)
    wrong = Gradients(1, 1, False, (("weight", (9.0, -4.0)), ("bias", ())))
    (text,) = texts(judge.judge_gradients([ALONE, wrong, steps[1], *ended], 1e-4))
    assert text.startswith("step 1, rank 1: the gradient of weight has 9")


def test_a_step_in_the_middle_of_which_a_rank_broke_off_is_not_judged_by_its_passes() -> None:
    history = [Wrapped(0, ("a", "b"), False), Pass(0, 1, 0, ("a",), 0, "a")]
    off = Ended(0, 0, 1, False, "OSError: disk is full")
    assert texts(judge.judge_use(history, frozenset()))
    assert not judge.judge_use([*history, off], frozenset())
    assert not judge.judge_accumulation([*history, off])
    alone = Decided(0, 1, True, True, ())
    assert not judge.judge_use([*history, alone, off], frozenset())
    returned = replace(alone, alone=False)
    assert texts(judge.judge_use([*history, returned, off], frozenset()))
    assert texts(judge.judge_accumulation([*history, returned, off]))


def test_unused_parameters_are_to_be_declared() -> None:
    history = [*WRAPPED, PASS, replace(PASS, rank=1, used=("weight",))]
    (text,) = texts(judge.judge_use(history, frozenset()))
    assert text.startswith("step 1, rank 1: bias gets no gradient")
    assert judge.judge_use(history, frozenset({"unused_parameters"})) == ()


def test_all_passes_of_a_step_use_together() -> None:
    halves = [replace(PASS, used=("weight",)), replace(PASS, place=1, used=("bias",))]
    assert judge.judge_use([WRAPPED[0], *halves], frozenset()) == ()


def test_a_static_graph_may_leave_out_but_not_change() -> None:
    static = replace(WRAPPED[0], static=True)
    declared = frozenset({"unused_parameters"})
    same = [static, replace(PASS, used=("bias",)), replace(PASS, step=2, used=("bias",))]
    assert judge.judge_use(same, declared) == ()
    (text,) = texts(judge.judge_use([static, PASS, same[2]], declared))
    assert text == (
        "rank 0: the graph is declared static, but weight is used in only one of the steps 1 and 2"
    )


def test_writes_are_named() -> None:
    assert texts(judge.judge_no_writes([Overwrote(1, 2, ("weight",))])) == [
        "step 2, rank 1: forward() changed weight"
    ]
    assert judge.judge_no_writes([PASS]) == ()


ACCUMULATED = [
    replace(PASS, collectives=0, digest="a"),
    replace(PASS, place=1),
    replace(PASS, rank=1, collectives=0, digest="b"),
    replace(PASS, rank=1, place=1),
]


def test_a_reduction_in_the_last_pass_passes() -> None:
    assert judge.judge_accumulation(ACCUMULATED) == ()


def test_collectives_that_every_pass_has_are_those_of_the_forward_pass() -> None:
    """SyncBatchNorm, for example, has collectives in every forward pass."""
    history = [replace(seen, collectives=2 + seen.collectives) for seen in ACCUMULATED]
    assert judge.judge_accumulation(history) == ()
    history = [replace(seen, collectives=2) for seen in ACCUMULATED]
    assert [text.partition(": ")[2] for text in texts(judge.judge_accumulation(history))] == [
        "gradients are reduced in backward pass 1 of 2 already"
    ] * 2


def test_reductions_in_other_passes_are_named() -> None:
    history = [replace(seen, collectives=1 - seen.collectives) for seen in ACCUMULATED]
    assert texts(judge.judge_accumulation(history)) == [
        f"step 1, rank {rank}: gradients are {text}"
        for rank in (0, 1)
        for text in (
            "reduced in backward pass 1 of 2 already",
            "not reduced in the last backward pass",
        )
    ]


def test_a_sharded_model_is_not_judged_by_its_collectives() -> None:
    assert judge.judge_accumulation([replace(WRAPPED[0], sharded=True), PASS]) == ()


def test_equal_gradients_before_the_last_pass_are_named() -> None:
    history = [replace(seen, digest="a") for seen in ACCUMULATED]
    assert texts(judge.judge_accumulation(history)) == [
        "step 1: all ranks have the same gradients after backward pass 1"
    ]


def test_one_pass_accumulates_nothing() -> None:
    (text,) = texts(judge.judge_accumulation([PASS]))
    assert text == "step 1, rank 0: 1 backward passes, so that nothing is accumulated"


# ------------------------------------------------------------------ other names on other ranks

STAGES = (Wrapped(0, ("embed", "enter"), False), Wrapped(1, ("head", "leave"), False))
ON_STAGES = (
    State(0, judge.WRAPPING, (("embed", "a"), ("enter", "b"))),
    State(1, judge.WRAPPING, (("head", "a"), ("leave", "c"))),
)
TIED = Tied(0, ("embed", "head"))
OF_STAGES = (
    Gradients(0, 1, False, (("embed", (1.0,)), ("enter", (2.0,)))),
    Gradients(1, 1, False, (("head", (1.0,)), ("leave", (3.0,)))),
)
OF_BOTH = Gradients(0, 1, True, (("embed", (1.0,)), ("enter", (2.0,)), ("leave", (3.0,))))


def test_what_one_rank_has_alone_is_compared_with_no_other() -> None:
    assert judge.judge_equal_after_wrapping([*STAGES, *ON_STAGES, TIED]) == ()
    assert judge.judge_gradients([*STAGES, TIED, *OF_STAGES, OF_BOTH], 1e-4) == ()


def test_a_tied_parameter_is_one_under_all_its_names() -> None:
    apart = [ON_STAGES[0], replace(ON_STAGES[1], parameters=(("head", "x"), ("leave", "c")))]
    assert judge.judge_equal_after_wrapping([*STAGES, *apart]) == ()
    assert texts(judge.judge_equal_after_wrapping([*STAGES, *apart, TIED])) == [
        "after wrapping embed is another on rank 0 and rank 1"
    ]
    half = replace(OF_STAGES[1], values=(("head", (0.5,)), ("leave", (3.0,))))
    assert texts(judge.judge_gradients([*STAGES, TIED, OF_STAGES[0], half, OF_BOTH], 1e-4)) == [
        "step 1, rank 1: the gradient of head has 0.5, of one process 1"
    ]


def test_two_copies_on_one_rank_are_compared_each() -> None:
    untied = Wrapped(0, ("embed", "head"), False)
    whole = Gradients(0, 1, True, (("embed", (1.0,)),))
    halves = Gradients(0, 1, False, (("embed", (1.0,)), ("head", (0.5,))))
    assert texts(judge.judge_gradients([untied, TIED, whole, halves], 1e-4)) == [
        "step 1, rank 0: the gradient of head has 0.5, of one process 1"
    ]
    state = State(0, "after step 1", (("embed", "a"), ("head", "b")))
    assert texts(judge.judge_equal_after_steps([untied, TIED, state])) == [
        "after step 1 embed is another on rank 0 and rank 0"
    ]


def test_what_no_rank_trains_is_named() -> None:
    more = replace(OF_BOTH, values=(*OF_BOTH.values, ("gate", (4.0,))))
    assert texts(judge.judge_gradients([*STAGES, TIED, *OF_STAGES, more], 1e-4)) == [
        f"step 1, rank {rank}: gate has 0 gradient values, one process 1" for rank in (0, 1)
    ]


def test_a_rank_with_nothing_to_train_need_not_step() -> None:
    idle = Wrapped(1, (), False)
    seen = [WRAPPED[0], idle, ALONE, replace(ALONE, alone=False), *THROUGH]
    assert judge.judge_gradients(seen, 1e-4) == ()


# ------------------------------------------------------------------ what is not there

THROUGH = (Ended(0, 0, 0, True), Ended(1, 1, 0, True))


def test_a_state_or_parameter_that_one_rank_lacks_is_named() -> None:
    assert texts(judge.judge_equal_after_steps([EQUAL, *THROUGH])) == [
        "after step 1 nothing is known of rank 1"
    ]
    assert texts(judge.judge_equal_after_wrapping(THROUGH)) == [
        "after wrapping nothing is known of ranks 0 and 1"
    ]
    fewer = replace(EQUAL, rank=1, parameters=EQUAL.parameters[:1])
    assert texts(judge.judge_equal_after_steps([*WRAPPED, EQUAL, fewer])) == [
        "after step 1 bias is another on rank 0 and rank 1"
    ]


def test_a_rank_that_died_need_not_have_come_so_far() -> None:
    died = [THROUGH[0], replace(THROUGH[1], code=-9, returned=False)]
    assert judge.judge_equal_after_steps([EQUAL, *died]) == ()
    assert judge.judge_no_writes([PASS, *died]) == ()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_finite_number_is_found_at_any_place(wrong: float) -> None:
    """``max`` passes over a NaN that is not the first, and infinity lies within any share of it."""
    values = (("weight", (1.0, wrong)), ("bias", ()))
    mine = replace(ALONE, alone=False, values=values)
    for history in ([ALONE, mine], [replace(mine, alone=True), replace(ALONE, alone=False)]):
        assert len(judge.judge_gradients(history, 1e-4)) == 1
    assert judge.judge_gradients([replace(mine, alone=True), mine], 1e-4) == ()


def test_gradients_and_steps_that_a_rank_lacks_are_named() -> None:
    mine = replace(ALONE, alone=False, values=(("bias", ()),))
    assert texts(judge.judge_gradients([ALONE, mine], 1e-4)) == [
        "step 1, rank 0: weight has 0 gradient values, one process 2"
    ]
    whole = replace(ALONE, alone=False)
    assert texts(judge.judge_gradients([ALONE, whole, *THROUGH], 1e-4)) == [
        "step 1, rank 1: no such step is made, one process with all samples makes it"
    ]
    assert texts(judge.judge_gradients(THROUGH, 1e-4)) == [
        "rank 0 made no optimizer step",
        "rank 1 made no optimizer step",
    ]


def test_the_optimizers_of_a_step_are_compared_one_by_one() -> None:
    second = replace(ALONE, values=(("weight", (7.0, 7.0)), ("bias", ())))
    alone = [ALONE, second]
    assert judge.judge_gradients([*alone, *(replace(g, alone=False) for g in alone)], 1e-4) == ()
    (text,) = texts(judge.judge_gradients([*alone, replace(second, alone=False)], 1e-4))
    assert text == "step 1, rank 0: the gradient of weight has 7, of one process -4"


def test_optimizers_of_hooks_may_be_called_in_another_order() -> None:
    """Each is compared by its own parameters; others may have their gradients, or not yet."""
    early = replace(ALONE, values=(("weight", (1.0,)), ("bias", ())), owned=("weight",))
    late = replace(ALONE, values=(("weight", ()), ("bias", (2.0,))), owned=("bias",))
    first = replace(late, alone=False, values=(("weight", ()), ("bias", (2.0,))))
    second = replace(early, alone=False, values=(("weight", (1.0,)), ("bias", (2.0,))))
    assert judge.judge_gradients([early, late, first, second], 1e-4) == ()
    wrong = replace(first, values=(("weight", ()), ("bias", (9.0,))))
    assert texts(judge.judge_gradients([early, late, wrong, second], 1e-4)) == [
        "step 1, rank 0: the gradient of bias has 9, of one process 2"
    ]
    assert judge.judge_gradients([early, late, second, replace(second, step=1)], 1e-4)


def test_what_a_subclass_makes_of_gradients_in_its_step_counts() -> None:
    before = replace(ALONE, alone=False, values=WRONG)
    after = replace(ALONE, alone=False, taken="in the step")
    inside = replace(ALONE, taken="in the step")
    assert judge.judge_gradients([ALONE, inside, before, after], 1e-4) == ()
    spoilt = replace(after, values=WRONG)
    assert judge.judge_gradients(
        [ALONE, inside, replace(before, values=ALONE.values), spoilt], 1e-4
    )


def test_a_layer_that_another_stage_unfreezes_later_need_not_be_here() -> None:
    frozen = State(1, judge.WRAPPING, (("head", "a"), ("leave", "a"), ("late", "a")))
    late = [replace(one, values=(*one.values, ("late", (4.0,)))) for one in (OF_STAGES[1], OF_BOTH)]
    history = [*STAGES, TIED, OF_STAGES[0], *late]
    assert judge.judge_gradients([*history, frozen], 1e-4) == ()
    here = replace(frozen, rank=0)
    assert judge.judge_gradients([*history, frozen, here], 1e-4)


def test_nothing_that_could_be_judged_is_no_pass() -> None:
    nothing = ["rank 0: no backward pass was seen", "rank 1: no backward pass was seen"]
    assert texts(judge.judge_no_writes(THROUGH)) == nothing
    assert texts(judge.judge_accumulation(THROUGH)) == nothing
    assert texts(judge.judge_use([*WRAPPED, *THROUGH], frozenset())) == nothing


def test_ranks_may_have_different_numbers_of_passes() -> None:
    longer = [replace(ACCUMULATED[0], place=1), replace(PASS, place=2)]
    history = [ACCUMULATED[0], *longer, *ACCUMULATED[2:]]
    assert judge.judge_accumulation(history) == ()


def test_a_rank_without_a_pass_in_a_step_is_named() -> None:
    assert texts(judge.judge_accumulation([*ACCUMULATED[:2], *THROUGH])) == [
        "rank 1: no backward pass was seen",
        "step 1, rank 1: 0 backward passes, so that nothing is accumulated",
    ]


BY_HAND = replace(ALONE, taken="after backward")
RANKS = replace(BY_HAND, alone=False)
WRONG = (("weight", (9.0, -4.0)), ("bias", ()))


def test_of_a_step_by_hand_either_look_may_be_right() -> None:
    reduced = [replace(RANKS, values=WRONG), replace(RANKS, taken="in the end")]
    cleared = [RANKS, replace(RANKS, values=WRONG, taken="in the end")]
    assert judge.judge_gradients([BY_HAND, *reduced], 1e-4) == ()
    assert judge.judge_gradients([BY_HAND, *cleared], 1e-4) == ()
    both = [replace(one, values=WRONG) for one in reduced]
    assert texts(judge.judge_gradients([BY_HAND, *both], 1e-4)) == [
        "step 1, rank 0: the gradient of weight has 9, of one process 1"
    ]
    assert not judge.gradients_unseen([BY_HAND, *both])
    assert judge.gradients_unseen([BY_HAND, replace(RANKS, values=WRONG)])


def test_nothing_is_compared_from_where_one_process_ends() -> None:
    later = replace(ALONE, step=3, alone=False, values=WRONG)
    history = [ALONE, replace(ALONE, alone=False), later]
    assert len(judge.judge_gradients(history, 1e-4)) == 1
    assert judge.judge_gradients([*history, OneProcessEnds(0, 3)], 1e-4) == ()


@pytest.mark.parametrize(
    ("ranks", "one", "first"),
    [
        ({1: {0, 1}}, {1}, None),
        ({1: {0, 1}, 2: {0, 1}}, {1, 3}, 2),
        ({2: {0, 1}}, {1}, 1),
        ({1: {0}}, set(), None),  # a rank alone: they do not decide together
    ],
)
def test_overflows_of_the_ranks_or_of_one_process_alone(
    ranks: dict[int, set[int]], one: set[int], first: int | None
) -> None:
    history: list[Record] = [Decided(rank, 1, False, True, ()) for rank in (0, 1)]
    history += [Overflowed(rank, step, False) for step, some in ranks.items() for rank in some]
    history += [Overflowed(0, step, True) for step in one]
    assert judge.overflowed_apart(history) == first
