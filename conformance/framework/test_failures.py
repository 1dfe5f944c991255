"""Which exceptions of a subject are failures of its code, and the texts for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from ddp_conformance import UndecidedError, Writer
from ddp_conformance.framework.case import Case
from ddp_conformance.framework.failures import cause_of, failures, in_words
from ddp_conformance.framework.registry import all_checks
from torch.distributed.checkpoint.api import CheckpointException

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


def load_nothing(path: Path) -> None:
    """torch raises its exception, as there is no checkpoint."""
    dcp.load({"weight": torch.zeros(1)}, checkpoint_id=path, no_dist=True)


def test_the_exception_of_a_checkpoint_is_a_failure(tmp_path: Path) -> None:
    assert not issubclass(CheckpointException, Exception)
    with pytest.raises(failures()) as caught:
        load_nothing(tmp_path / "missing")
    assert type(caught.value) is CheckpointException
    cause = cause_of(caught.value)
    assert "[Errno 2] No such file" in str(cause)
    assert in_words(caught.value) == f"CheckpointException: {in_words(cause)}"


@pytest.mark.parametrize(
    "ends",
    [KeyboardInterrupt, SystemExit, pytest.skip.Exception, pytest.fail.Exception],
)
def test_what_ends_a_process_or_a_test_is_none(ends: type[BaseException]) -> None:
    assert not issubclass(ends, failures())
    assert issubclass(SystemExit, failures(SystemExit))


def test_others_are_their_own_cause() -> None:
    error = ValueError("first\nsecond")
    assert cause_of(error) is error
    assert in_words(error) == "ValueError: first"
    assert in_words(ValueError()) == "ValueError"
    assert in_words(ValueError("Missing:\n\tweight\n\tbias")) == "ValueError: Missing: weight"
    assert in_words(CheckpointException("read", {})).startswith("CheckpointException")


def loads_nothing(case: Case) -> Any:
    """A part that finds no checkpoint on the last rank."""

    def write(number: int) -> None:
        if case.rank == case.world_size - 1:
            load_nothing(case.directory / "missing")

    return write


@pytest.mark.ddp(world_size=2)
@pytest.mark.parametrize("guarantee", ["WRT-01", "WRT-02"])
def test_a_rank_that_cannot_load_is_named(guarantee: str) -> None:
    (check,) = [check for check in all_checks() if check.id == guarantee]
    subject = Writer(loads_nothing, {"published"}, records=lambda directory: [])
    with pytest.raises(UndecidedError, match=r"rank 1: CheckpointException: \w+Error: "):
        check(subject)
