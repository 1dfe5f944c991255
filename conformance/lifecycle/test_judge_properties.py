"""Properties of the lifecycle's judges: all that is legal passes, any single breach is named."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from ddp_conformance.framework.allowance import Terms
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
from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies import (
    any_record,
    changed,
    dealt,
    digests,
    ends,
    floats,
    others,
    quick,
    several,
    texts,
    without,
    words,
    world_sizes,
)


@dataclass(frozen=True)
class Program:
    """A legal run of a training program."""

    world_size: int
    size: int
    traits: frozenset[str]
    history: list[Any]


@st.composite
def programs(draw: st.DrawFn, sizes: st.SearchStrategy[int] = world_sizes) -> Program:
    """Passes over any shares, which may be padded or dropped, and steps on them."""
    world_size, size = draw(sizes), draw(st.integers(1, 9))
    traits = frozenset(draw(st.sampled_from([(), ("pads",), ("drops",)])))
    names = tuple(draw(st.lists(words, min_size=1, max_size=3, unique=True)))
    history: list[Any] = []
    chosen = draw(st.sampled_from([("gloo",), ("nccl", "gloo")]))
    for rank in range(world_size):
        history += [
            Happened(rank, stage, f"train.py:{place}")
            for place, stage in enumerate(["init_process_group", "loader", "wrap", "optimizer"])
        ]
        history += [Chose(rank, "backend", name) for name in chosen]
        history += [Chose(rank, "world size", str(world_size)), Chose(rank, "device", "cpu")]
    loaders = draw(deals(size, world_size, traits))
    for number in range(draw(st.integers(1, 3))):
        history += passes(draw, number, size, loaders)
        history += steps(draw, number + 1, names, world_size)
    files = draw(st.lists(words, max_size=3, unique=True))
    history += [Made(0, path, draw(digests)) for path in files]
    history += [Saved(draw(st.integers(0, world_size - 1)), path, ()) for path in files]
    history += [Compiled(rank, draw(st.integers(1, 3))) for rank in range(world_size)]
    return Program(world_size, size, traits, [*history, *ends(world_size)])


@dataclass(frozen=True)
class Deal:
    """How all passes are dealt out: a rank has samples in each of them, or in none."""

    ranks: int
    batch: int
    repeated: int
    dropped: int


@st.composite
def deals(draw: st.DrawFn, size: int, world_size: int, traits: frozenset[str]) -> Deal:
    batch = draw(st.integers(1, 3))
    step = world_size * batch
    repeated = draw(st.integers(0, min(size, -size % world_size if "pads" in traits else 0)))
    dropped = draw(st.integers(0, size % step if "drops" in traits else 0))
    ranks = draw(st.integers(min(1, size - dropped), min(world_size, size + repeated - dropped)))
    return Deal(ranks, batch, repeated, dropped)


def passes(draw: st.DrawFn, number: int, size: int, deal: Deal) -> list[Fetched]:
    """Each sample to any rank; a pass without an optimizer step may hold anything."""
    order = draw(st.permutations(range(size)))
    items = [*order[deal.dropped :], *order[: deal.repeated]]
    shares = dealt(draw, items[deal.ranks :], deal.ranks) if deal.ranks else []
    whole = draw(st.booleans())
    found = [
        Fetched(rank, 0, number, size, (first, *share), deal.batch, whole, trained=True)
        for rank, (first, share) in enumerate(zip(items, shares, strict=False))
    ]
    looked_at = Fetched(0, 1, number, size, (0, 0, size), 1, complete=True, trained=False)
    return [*found, *([looked_at] if draw(st.booleans()) else [])]


def steps(draw: st.DrawFn, number: int, names: tuple[str, ...], world_size: int) -> list[Optimized]:
    """One rate for all, which may be a warm-up's 0; values may be infinite or no numbers."""
    rate = draw(st.sampled_from([0.1, -0.0, 0.0, 1e-9])) if number > 1 else 0.1
    sums = tuple(value for _ in names for value in (draw(floats), abs(draw(floats))))
    digest, count = draw(digests), draw(st.integers(1, len(names))) if rate else 0
    return [
        Optimized(rank, number, rate, True, names, names, 0, count, digest, sums)
        for rank in range(world_size)
    ]


def found_by_all(program: Program, history: Sequence[Any]) -> dict[str, list[str]]:
    """The violations that each judge finds, by its name; judges that find none are left out."""
    found = {
        "finished": judge.judge_finished(history),
        "deliveries": judge.judge_deliveries(history, program.world_size, Terms(program.traits)),
        "results": judge.judge_same_results(program.history, history),
        "optimizer": judge.judge_optimizer(history),
        "compiled": judge.judge_compiled(history, program.history),
        "left": judge.judge_nothing_left(history),
        "time": judge.judge_ended_in_time(history),
        "agreement": judge.judge_agreement(history),
    }
    return {name: texts(violations) for name, violations in found.items() if violations}


@quick
@given(programs(), st.randoms(use_true_random=False))
def test_legal_programs_pass_in_any_order_of_their_ranks(program: Program, random: Any) -> None:
    assert found_by_all(program, program.history) == {}
    order = list(range(program.world_size))
    random.shuffle(order)
    by_rank = sorted(program.history, key=lambda record: order[record.rank])
    assert found_by_all(program, by_rank) == {}


# ---------------------------------------------------------------- LIF-01, LIF-07, LIF-08


@quick
@given(programs(), st.data())
def test_any_bad_end_is_named(program: Program, data: st.DataObject) -> None:
    end = any_record(data, program.history, Ended)
    code = data.draw(st.none() | others(st.integers(-64, 255), 0))
    returned = data.draw(st.booleans())
    history = changed(program.history, end, code=code, returned=returned)
    found = found_by_all(program, history)
    (text,) = found["finished"]
    assert text.startswith(f"rank {end.rank} ")
    assert "its last stage was optimizer at train.py:3" in text
    assert found["results"][0].startswith(f"end of rank {end.rank}: rank {end.rank} ")
    assert found.keys() - {"compiled"} == {"finished", "results", *(["time"] * (code is None))}
    deaths = texts(judge.judge_death_shows(history))
    assert bool(deaths) == (code is None)
    for named in (*deaths, *found.get("time", ())):
        assert f"rank {end.rank} had " in named


@quick
@given(programs(), st.data())
def test_leaving_early_with_0_is_no_end_but_shows_no_death(
    program: Program, data: st.DataObject
) -> None:
    end = any_record(data, program.history, Ended)
    history = changed(program.history, end, returned=False)
    assert found_by_all(program, history)["finished"][0].startswith(
        f"rank {end.rank} left with exit code 0 before its entry had come to its end"
    )
    (text,) = texts(judge.judge_death_shows(history))
    assert all(f"rank {rank} ended with exit code 0" in text for rank in range(program.world_size))


@quick
@given(programs(), st.data())
def test_any_rank_without_a_step_is_named(program: Program, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, program.world_size - 1))
    own = [r for r in program.history if isinstance(r, Optimized) and r.rank == rank]
    found = found_by_all(program, without(program.history, *own))
    assert found.pop("finished") == [f"rank {rank} made no optimizer step"]
    expected = [f"rank {rank} has another step {step.step} without torch.compile" for step in own]
    assert found.pop("compiled") == expected
    results = found.pop("results")
    assert not found
    assert len(results) == len(own)
    assert all(text.startswith(f"rank {rank}, parameters after step ") for text in results)


# ---------------------------------------------------------------- LIF-02 and LIF-03


def trained(program: Program) -> list[Fetched]:
    return [r for r in program.history if isinstance(r, Fetched) and r.trained]


@quick
@given(programs(), st.data())
def test_any_index_of_no_sample_is_named(program: Program, data: st.DataObject) -> None:
    some = trained(program)
    if not some:
        return
    seen = data.draw(st.sampled_from(some))
    index = data.draw(others(st.integers(-9, 99), *range(program.size)))
    place = data.draw(st.integers(0, len(seen.indices) - 1))
    indices = (*seen.indices[:place], index, *seen.indices[place + 1 :])
    found = found_by_all(program, changed(program.history, seen, indices=indices))
    expected = f"index {index} is none of {program.size} samples, for rank {seen.rank}"
    assert any(text.endswith(expected) for text in found["deliveries"])
    (text,) = found["results"]
    assert text.startswith(f"rank {seen.rank}, samples of loader 0, pass {seen.number}: ")


@quick
@given(programs(), st.data())
def test_any_sample_that_is_lost_or_doubled_beyond_the_allowance_is_named(
    program: Program, data: st.DataObject
) -> None:
    """Against the declared traits, nothing may be lost, nor repeated, without one."""
    bare = replace(program, traits=frozenset())
    some = [seen for seen in trained(program) if seen.complete]
    if program.traits or not some:
        return
    seen = data.draw(st.sampled_from(some))
    place = data.draw(st.integers(0, len(seen.indices) - 1))
    index = seen.indices[place]
    lost = (*seen.indices[:place], *seen.indices[place + 1 :])
    named = f"1 of {program.size} samples are trained on by no rank, first index {index}"
    found = found_by_all(bare, changed(program.history, seen, indices=lost))
    assert [text.split(": ", 1)[1] for text in found["deliveries"]] == [named]
    named = f"index {index} by ranks {seen.rank} and {seen.rank}"
    found = found_by_all(bare, changed(program.history, seen, indices=(*seen.indices, index)))
    (text,) = found["deliveries"]
    assert text.endswith(f"1 of {program.size} samples are trained on once more; {named}")


@quick
@given(programs(several), st.data())
def test_another_data_set_is_named_with_its_rank(program: Program, data: st.DataObject) -> None:
    some = trained(program)
    seen = data.draw(st.sampled_from(some)) if some else None
    if seen is None or len({r.rank for r in some if r.number == seen.number}) < 2:
        return
    history = changed(program.history, seen, size=program.size + 3)
    found = texts(judge.judge_deliveries(history, program.world_size, Terms(program.traits)))
    assert any(f"rank {seen.rank}: {program.size + 3} samples" in text for text in found)


@quick
@given(programs(), st.data())
def test_any_other_result_is_named(program: Program, data: st.DataObject) -> None:
    seen = any_record(data, program.history, Optimized)
    other = seen.digest[:-1] + ("0" if seen.digest[-1] != "0" else "1")
    found = found_by_all(program, changed(program.history, seen, digest=other))
    where = f"rank {seen.rank}, parameters after step {seen.step}"
    assert found == {"results": [f"{where}: {other}, undisturbed {seen.digest}"]}


@quick
@given(programs(), words, st.booleans())
def test_any_foreign_or_lost_file_is_named(program: Program, path: str, late: bool) -> None:
    bare = [record for record in program.history if not isinstance(record, Made)]
    more = [*bare, Made(0, path, "00")]
    base, other = (bare, more) if late else (more, bare)
    sides = "00, undisturbed none" if late else "none, undisturbed 00"
    assert texts(judge.judge_same_results(base, other)) == [f"file {path}: {sides}"]


# ---------------------------------------------------------------- LIF-04 and LIF-05


@quick
@given(programs(), st.data())
def test_any_wrong_optimizer_is_named(program: Program, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, program.world_size - 1))
    own = [r for r in program.history if isinstance(r, Optimized) and r.rank == rank]
    name = data.draw(st.sampled_from(own[0].live))
    idle = lacking = program.history
    for step in own:
        idle = changed(idle, step, changed=0)
        kept = tuple(other for other in step.owned if other != name)
        lacking = changed(lacking, step, owned=kept)
    (text,) = texts(judge.judge_optimizer(idle))
    assert text.startswith("no parameter changed in step 1")
    assert text.endswith(f", on rank {rank}")
    (text,) = texts(judge.judge_optimizer(lacking))
    live = len(own[0].live)
    assert text == (
        f"the optimizer lacks 1 of {live} live parameters ({name} and so on), on rank {rank}"
    )
    foreign = changed(program.history, data.draw(st.sampled_from(own)), foreign=2)
    (text,) = texts(judge.judge_optimizer(foreign))
    assert text == f"the optimizer has 2 parameters of no wrapped module, on rank {rank}"


@quick
@given(programs(), st.data())
def test_any_value_far_from_eager_training_is_named(program: Program, data: st.DataObject) -> None:
    step = any_record(data, program.history, Optimized)
    place = data.draw(st.integers(0, len(step.live) - 1))
    own, scale = step.sums[2 * place :][:2]
    far = [math.nan, math.inf, -math.inf]
    far += [own + 1.0 + 2e-3 * abs(scale)] if math.isfinite(own) and math.isfinite(scale) else []
    wrong = data.draw(st.sampled_from([w for w in far if not same(w, own)]))
    sums = (*step.sums[: 2 * place], wrong, *step.sums[2 * place + 1 :])
    history = changed(program.history, step, sums=sums)
    named = f"rank {step.rank}: {step.live[place]} differs after step {step.step} from eager"
    assert [text.startswith(named) for text in found_by_all(program, history)["compiled"]] == [True]
    assert len(judge.judge_compiled(program.history, history)) == 1


def same(value: float, other: float) -> bool:
    return value == other or (math.isnan(value) and math.isnan(other))


@quick
@given(programs(), st.data())
def test_any_step_that_only_one_run_makes_is_named(program: Program, data: st.DataObject) -> None:
    step = any_record(data, program.history, Optimized)
    fewer = without(program.history, step)
    expected = [f"rank {step.rank} has another step {step.step} without torch.compile"]
    assert texts(judge.judge_compiled(fewer, program.history)) == expected
    assert texts(judge.judge_compiled(program.history, fewer)) == expected


@quick
@given(programs(), st.data())
def test_a_rank_that_compiled_nothing_is_named(program: Program, data: st.DataObject) -> None:
    seen = any_record(data, program.history, Compiled)
    for history in (
        changed(program.history, seen, graphs=0),
        without(program.history, seen),
    ):
        assert found_by_all(program, history) == {
            "compiled": [f"nothing was compiled on rank {seen.rank}"]
        }


@quick
@given(programs(), words, words)
def test_any_name_of_a_wrapper_is_named(program: Program, path: str, name: str) -> None:
    saved = Saved(program.world_size - 1, path, (f"module.{name}", "another"))
    (text,) = found_by_all(program, [*program.history, saved])["compiled"]
    assert text.startswith(f"{path}, saved by rank {saved.rank}, has 2 names ")
    assert text.endswith(f"the first is module.{name}")


# ---------------------------------------------------------------- LIF-06 and LIF-09


@quick
@given(programs(), words, st.data())
def test_whatever_is_left_is_named_with_its_ranks(
    program: Program, what: str, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, program.world_size - 1))
    found = found_by_all(program, [*program.history, Left(rank, what)])
    assert found == {"left": [f"{what} is left on rank {rank}"]}


@quick
@given(programs(several), st.data())
def test_any_other_choice_is_named(program: Program, data: st.DataObject) -> None:
    seen = any_record(data, program.history, Chose)
    other = data.draw(others(words, *(r.value for r in program.history if isinstance(r, Chose))))
    for history in (
        changed(program.history, seen, value=other),
        [*program.history, replace(seen, value=other)],
        without(program.history, seen),
    ):
        found = found_by_all(program, history)
        assert found.keys() == {"agreement"}
        (text,) = found["agreement"]
        assert text.startswith(f"the {seen.what} differs: ")
        assert f"rank {seen.rank}: " in text


@pytest.mark.parametrize("judged", [judge.judge_finished, judge.judge_ended_in_time])
def test_no_rank_at_all_is_no_pass(judged: Any) -> None:
    assert texts(judged([])) == ["the end of no rank was seen"]
