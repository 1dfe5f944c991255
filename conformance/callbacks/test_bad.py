"""Subjects that cannot be judged: a reason on all ranks, never a hang nor a verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp_conformance import Callback, Case, ErrorPath, Guard, Preparation, UndecidedError, Writer
from ddp_conformance.framework.registry import all_checks
from ddp_conformance.framework.subjects import Subject


class RaisesOnLastRank:
    """A writer that the check has to give up in the middle of its exchanges."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def __call__(self, number: int) -> None:
        if self.case.rank == self.case.world_size - 1:
            raise OSError("no space left on device")


def no_mapping(case: Case) -> Iterator[Any]:
    yield 17


def broken_factory(case: Case, *arguments: Any) -> Iterator[Any]:
    raise KeyError("factory")


def breaks_on_rank_zero(case: Case) -> Iterator[Any]:
    if case.rank == 0:
        raise KeyError("loop")
    yield {"stop": False}


def no_data_module(case: Case) -> object:
    return object()


PUBLISHED = {"published"}


@pytest.mark.ddp(world_size=[1, 2, 3])
@pytest.mark.parametrize(
    ("guarantee", "subject", "reason"),
    [
        ("WRT-02", Writer(RaisesOnLastRank, PUBLISHED, records=lambda folder: []), "no space left"),
        ("WRT-01", Writer(RaisesOnLastRank), "no space left"),
        ("CBK-01", Callback(no_mapping), "yield a mapping such as"),
        ("CBK-01", Callback(broken_factory), "KeyError: 'factory'"),
        ("CBK-02", Callback(breaks_on_rank_zero, {"decides"}), "KeyError: 'loop'"),
        ("WRT-05", Guard(broken_factory), "KeyError: 'factory'"),
        ("WRT-06", Preparation(no_data_module), "has no attribute 'prepare_data'"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_no_verdict(guarantee: str, subject: Subject, reason: str) -> None:
    (check,) = [check for check in all_checks() if check.id == guarantee]
    with pytest.raises(UndecidedError, match=reason):
        check(subject)


@pytest.mark.ddp(world_size=2)
def test_an_error_path_that_fails_by_itself_is_not_asked_about_its_error() -> None:
    (check,) = [check for check in all_checks() if check.id == "CBK-04"]
    with pytest.raises(AssertionError, match=r"trip\(step\) was never called"):
        check(ErrorPath(broken_factory))


def other_dtype_on_rank_zero(case: Case, *trip: Any) -> Iterator[Any]:
    """Cut off at its first collective, long before it decides or an error comes."""
    dist.all_reduce(torch.tensor(1.0) if case.rank == 0 else torch.tensor(1))
    for step in range(3):
        for tell in trip:
            tell(step)
        yield {"lr": 0.1}


@pytest.mark.ddp(world_size=[2, 3])
@pytest.mark.parametrize(
    ("guarantee", "subject"),
    [
        ("CBK-02", Callback(other_dtype_on_rank_zero, {"decides"})),
        ("CBK-04", ErrorPath(other_dtype_on_rank_zero)),
    ],
    ids=["CBK-02", "CBK-04"],
)
def test_what_was_cut_off_is_a_matter_of_its_collectives(guarantee: str, subject: Subject) -> None:
    (check,) = [check for check in all_checks() if check.id == guarantee]
    reason = r"(?s)\(see CBK-01\):\n.*collective 0: rank 0 allreduce SUM float32\[\]\s.*int64\[\]"
    with pytest.raises(UndecidedError, match=reason):
        check(subject)


class MissesItsFolder:
    """A writer that fails without any other rank."""

    def __init__(self, case: Case) -> None:
        self.path = case.directory / "never made" / "state"

    def __call__(self, number: int) -> None:
        self.path.write_text(str(number))


@pytest.mark.ddp(world_size=2)
def test_a_file_that_is_missing_anyway_was_taken_by_nobody() -> None:
    (check,) = [check for check in all_checks() if check.id == "WRT-02"]
    with pytest.raises(UndecidedError, match="No such file or directory"):
        check(Writer(MissesItsFolder, PUBLISHED, records=lambda folder: []))
