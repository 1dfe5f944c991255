"""The frame around the checks: subjects, traits, recording, on simulated ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ddp_conformance import (
    Case,
    Check,
    Guarantee,
    IndexDataset,
    Loader,
    Sampler,
    Subject,
    UndecidedError,
    parametrize_with_checks,
)
from ddp_conformance.framework.case import sizes
from ddp_conformance.framework.ranks import shared_directory
from ddp_conformance.framework.registry import all_checks, checks_for
from ddp_conformance.framework.verdict import GuaranteeError, Violation, listing, ranks_in_words
from ddp_conformance.frontend.pytest_frontend import BoundCheck
from ddp_conformance.frontend.table import Verdict, Word, render, summary
from ddp_conformance.sampling.subjects import announce_epoch, batch_indices, sampler_indices
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from conformance.simulated_ranks import SimulatedRanks, on_ranks


def check_of(guarantee_id: str, subject: Subject) -> Check:
    (check,) = [check for check in checks_for(subject) if check.id == guarantee_id]
    return check


def verdicts(subject: Subject, world_size: int = 2, guarantee_id: str = "SMP-01") -> list[Any]:
    check = check_of(guarantee_id, subject)
    return on_ranks(world_size, lambda ranks: check(subject, ranks))


def the_verdict(subject: Subject, kind: type[Exception], guarantee_id: str = "SMP-01") -> str:
    """The text that all ranks fail with."""
    found = verdicts(subject, guarantee_id=guarantee_id)
    assert [type(verdict) for verdict in found] == [kind] * 2
    assert len(set(map(str, found))) == 1
    return str(found[0])


def strided(case: Case) -> range:
    return range(case.rank, case.size, case.world_size)


# ---------------------------------------------------------------- bad subjects


def raises_on_rank_one(case: Case) -> range:
    if case.rank == 1:
        raise FileNotFoundError("no such shard: 1.tar")
    return strided(case)


def returns_none(case: Case) -> None:
    return None


def yields_dictionaries(case: Case) -> Iterator[dict[str, int]]:
    yield {"image": 0}


def yields_floats(case: Case) -> list[float]:
    return [0.0]


def yields_flags(case: Case) -> list[bool]:
    return [True]


def never_ends(case: Case) -> Iterable[int]:
    return itertools.repeat(0)


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raises_mutely(case: Case) -> range:
    raise MuteError


def test_what_one_rank_raises_fails_all() -> None:
    text = the_verdict(Sampler(raises_on_rank_one), UndecidedError)
    first, second, *rest = text.splitlines()
    assert first == "SMP-01 is undecided: raises_on_rank_one raised:"
    assert second.startswith("  size 1, rank 1: FileNotFoundError: no such shard: 1.tar")
    assert "test_frame.py:" in f"{second} {rest[0]}"


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        (Sampler(returns_none), "TypeError: 'NoneType' object is not iterable"),
        (Sampler(yields_dictionaries), "TypeError: 'image' is not a data set index"),
        (Sampler(yields_floats), "TypeError: 0.0 is not a data set index"),
        (Sampler(yields_flags), "TypeError: True is not a data set index"),
        (Loader(yields_dictionaries), "TypeError: a batch of type dict carries no 'index'"),
        (Sampler(raises_mutely), "MuteError: (its text cannot be made)"),
    ],
    ids=lambda value: value.name if isinstance(value, Subject) else "",
)
def test_wrong_types_are_undecided(subject: Subject, text: str) -> None:
    assert text in the_verdict(subject, UndecidedError)


def test_a_wrong_declaration_is_shown_at_the_users_line() -> None:
    """A frame of a dataclass's constructor has no source, and ours are of no use to its author."""
    with pytest.raises(ValueError, match="did you mean 'pads'") as caught:
        Sampler(strided, traits={"pad"})
    shown = caught.traceback.filter(caught)
    assert [entry.path.name for entry in shown] == ["test_frame.py"]


@pytest.mark.parametrize("guarantee_id", ["SMP-01", "SMP-02"])
def test_an_endless_sampler_is_a_violation(guarantee_id: str) -> None:
    text = the_verdict(Sampler(never_ends), GuaranteeError, guarantee_id)
    assert "  size 1, epoch 0: rank 0 did not end the epoch within 18 batches" in text


def test_a_violation_names_guarantee_subject_and_evidence() -> None:
    text = the_verdict(Sampler(lambda case: range(case.size), name="everything"), GuaranteeError)
    lines = text.splitlines()
    assert lines[0] == "SMP-01 is broken by everything at world size 2:"
    assert lines[1] == "  size 1, epoch 0: index 0 delivered by ranks 0 and 1"
    assert lines[6] == "  and 53 more"  # 2 epochs of 1 + 2 + 3 + 7 + 16 samples, less 5
    assert lines[7].startswith("SMP-01: In one epoch every sample MUST be delivered")
    assert len(lines) == 9
    assert max(map(len, lines)) <= 94
    assert not any("nemesis" in line for line in lines), "a seed of 0 needs no option"


def test_a_subject_that_keeps_it_passes() -> None:
    for world_size in (1, 2, 3, 4):
        assert verdicts(Sampler(strided, {"exact"}), world_size) == [None] * world_size


def test_random_streams_need_a_loader_to_look_into() -> None:
    subject = Loader(strided, {"augments"})
    text = the_verdict(subject, UndecidedError, "SMP-07")
    assert "the trait 'augments' needs a torch DataLoader, not a range" in text


# ---------------------------------------------------------------- prepare


def write_size(case: Case) -> None:
    (case.directory / "size").write_text(str(case.size))


def read_size(case: Case) -> range:
    size = int((case.directory / "size").read_text())
    return range(case.rank, size, case.world_size)


def cannot_prepare(case: Case) -> None:
    raise OSError("disk full")


def test_prepared_files_are_there_for_all_ranks_and_cases() -> None:
    assert verdicts(Sampler(read_size, {"exact"}, prepare=write_size), 3) == [None] * 3


def test_what_prepare_raises_fails_all() -> None:
    text = the_verdict(Sampler(strided, prepare=cannot_prepare), UndecidedError)
    assert "  rank 0: OSError: disk full" in text


def test_the_shared_directory_is_one_and_goes_away() -> None:
    def body(ranks: SimulatedRanks) -> Path:
        with shared_directory(ranks) as directory:
            assert directory.is_dir()
            return directory

    paths = on_ranks(2, body)
    assert len(set(paths)) == 1
    assert isinstance(paths[0], Path)
    assert not paths[0].exists()


# ---------------------------------------------------------------- cases


@pytest.mark.parametrize(
    ("world_size", "expected"),
    [(1, (1, 2, 5, 8)), (2, (1, 2, 3, 7, 16)), (3, (1, 2, 3, 4, 9, 24)), (4, (1, 3, 4, 5, 11, 32))],
)
def test_sizes(world_size: int, expected: tuple[int, ...]) -> None:
    assert sizes(world_size) == expected


def test_case_in_words() -> None:
    case = Case(5, 1, 2, Path())
    assert case.label == "size 5"
    assert Case(5, 1, 2, Path(), num_workers=2).label == "size 5, 2 workers"
    persistent, spawned = case.with_hard_workers()
    assert persistent.label == "size 5, 2 persistent workers"
    assert spawned.label == "size 5, 1 worker by spawn"
    assert [case.dataset[i]["index"] for i in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(IndexError, match="index 5 of a data set of 5 samples"):
        case.dataset[5]


# ---------------------------------------------------------------- subjects


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sampler(strided, {"pad"}), "strided: unknown trait 'pad'; did you mean 'pads'"),
        (lambda: Sampler(strided, {"x"}), "strided: unknown trait 'x'; known: .*augments, "),
        (lambda: Sampler(strided, "pads"), "strided: traits is the string 'pads'; write {'pads'}"),
        (lambda: Sampler(strided, {"pads", "exact"}), "traits exact and pads contradict"),
        (lambda: Sampler(range(3)), r"make=range\(0, 3\)\): make must be a function"),
        (lambda: Sampler(lambda case: case.dataset), "has no readable name"),
        (lambda: parametrize_with_checks([]), "there is no subject"),
        (lambda: parametrize_with_checks([strided]), "is not a subject; wrap its factory"),
        (
            lambda: parametrize_with_checks([Sampler(strided), Loader(strided)]),
            "two subjects are called 'strided'; pass name=",
        ),
        (
            lambda: parametrize_with_checks([Sampler(strided)], {"SMP-99": "why"}),
            "there is no guarantee 'SMP-99'; known: ",
        ),
        (
            lambda: parametrize_with_checks([Sampler(strided)], {"SMP-04": "why"}),
            "SMP-04 applies to none of the subjects",
        ),
        (
            lambda: parametrize_with_checks([Sampler(strided)], {"SMP-01": " "}),
            "SMP-01 has no reason, but ' '; say in a few words why it fails",
        ),
        (
            lambda: parametrize_with_checks([Sampler(strided)], lambda subject: {"SMP-00": "why"}),
            "there is no guarantee 'SMP-00'",
        ),
    ],
)
def test_wrong_arguments_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_subject_is_named_after_its_factory() -> None:
    assert Sampler(strided).name == "strided"
    assert Sampler(strided, name="mine").name == "mine"
    assert Sampler(strided, ["pads"]).traits == frozenset({"pads"})


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ({"index": torch.tensor([3, 1])}, (3, 1)),
        ({"index": 3}, (3,)),
        ({"index": [np.int64(3), 1]}, (3, 1)),
        (SimpleNamespace(index=torch.tensor([[3], [1]])), (3, 1)),
        (torch.tensor([3, 1]), (3, 1)),
        ([3, 1], (3, 1)),
        ([torch.tensor(3)], (3,)),
        ([], ()),
    ],
)
def test_indices_of_a_batch(batch: object, expected: tuple[int, ...]) -> None:
    assert batch_indices(batch) == expected


def test_indices_of_a_sampler_item() -> None:
    assert [sampler_indices(item) for item in (3, np.int64(3), [1, 2])] == [(3,), (3,), (1, 2)]


class Listener(SequentialSampler):
    def __init__(self) -> None:
        super().__init__(IndexDataset(4))
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


def test_the_epoch_reaches_each_sampler_once() -> None:
    plain, inner = Listener(), Listener()
    announce_epoch(DataLoader(IndexDataset(4), 2, sampler=plain), 3)
    announce_epoch(
        DataLoader(IndexDataset(4), batch_sampler=BatchSampler(inner, 2, drop_last=False)), 4
    )
    assert (plain.epochs, inner.epochs) == ([3], [4])
    announce_epoch(plain, 5)
    assert plain.epochs == [3, 5]


# ---------------------------------------------------------------- registry


def test_a_missing_trait_is_named() -> None:
    check = check_of("SMP-04", Sampler(strided))
    assert check.obstacle(Sampler(strided)) == "SMP-04 needs the trait 'shuffles'"
    assert check.obstacle(Sampler(strided, {"shuffles"})) is None


def test_an_excuse_is_named() -> None:
    check = check_of("SMP-02", Sampler(strided))
    assert check.obstacle(Sampler(strided, {"uneven"})) == "SMP-02 does not bind the trait 'uneven'"


def test_each_kind_has_at_most_one_check_of_a_guarantee() -> None:
    for check, other in itertools.combinations(all_checks(), 2):
        if check.id == other.id:
            assert check.guarantee == other.guarantee
            assert not set(check.kinds) & set(other.kinds)


def test_what_repeated_runs_show_twice_is_listed_once() -> None:
    check = check_of("SMP-01", Sampler(strided))
    twice = replace(check, find=lambda subject, ranks: [Violation("x"), Violation("x")])
    found = on_ranks(2, lambda ranks: twice(Sampler(strided), ranks))
    assert [error.evidence for error in found] == [("x",)] * 2


def test_witnesses_are_few_and_counted() -> None:
    assert listing(["a", "b"]) == "  a\n  b"
    assert listing(range(7)).splitlines()[-2:] == ["  4", "  and 2 more"]
    first, second, *others = listing(["word " * 30, "a\nb"]).splitlines()
    assert (first[:4], second[:6], others) == ("  wo", "    wo", ["  a", "    b"])
    assert max(map(len, (first, second))) <= 94
    assert str(Violation("x")) == "x"
    assert str(Violation("x", case="size 3")) == "size 3: x"
    assert ranks_in_words([1]) == "rank 1"
    assert ranks_in_words([0, 1, 3]) == "ranks 0, 1 and 3"


# ---------------------------------------------------------------- expected failures


def test_expected_failures_are_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Sampler(strided, {"exact"})
    check = check_of("SMP-01", kept)
    alone = SimulatedRanks.alone()
    monkeypatch.setattr("ddp_conformance.frontend.pytest_frontend.current_ranks", lambda: alone)
    BoundCheck(check)(kept)
    BoundCheck(check, "a reason")(kept)
    with pytest.raises(GuaranteeError):
        BoundCheck(check)(Sampler(never_ends))
    with pytest.raises(pytest.xfail.Exception, match="a reason"):
        BoundCheck(check, "a reason")(Sampler(never_ends))
    found = on_ranks(2, lambda ranks: _bound_on(ranks, check, kept))
    assert all("remove it from expected_failures" in str(error) for error in found)


def _bound_on(ranks: SimulatedRanks, check: Check, subject: Subject) -> str:
    try:
        BoundCheck(check, "a reason")(subject, ranks)
    except pytest.fail.Exception as error:
        return str(error)
    return "passed"


def test_own_guarantees_can_be_added() -> None:
    guarantee = Guarantee("OWN-01", "Nothing MUST happen.")
    check = Check(guarantee, (Sampler,), lambda subject, ranks: [Violation("it happened")])
    with pytest.raises(
        GuaranteeError, match=r"^OWN-01 is .*\n  it happened\nOWN-01: Nothing MUST happen\.$"
    ):
        check(Sampler(strided), SimulatedRanks.alone())


# ---------------------------------------------------------------- table


def test_a_table_has_a_row_for_each_guarantee_and_a_column_for_each_world_size() -> None:
    verdicts = [
        Verdict("second", "SMP-02", 4, Word.SKIPPED, "SMP-02 needs the trait 'x'"),
        Verdict("first", "SMP-01 *", 4, Word.FAILED),
        Verdict("first", "SMP-01 *", 2, Word.PASSED),
        Verdict("second", "SMP-01 *", 4, Word.EXPECTED, "a reason", 1.25),
    ]
    assert render(verdicts) == [
        "world size         2         4   seconds",
        "first",
        "  SMP-01 *    passed    FAILED       0.0",
        "second",
        "  SMP-01 *            expected       1.2  a reason",
        "  SMP-02               skipped       0.0  SMP-02 needs the trait 'x'",
    ]
    assert summary(verdicts) == "1 passed, 1 failed, 1 expected, 1 skipped in 1.2 s"
    assert summary([]) == "nothing was checked"
