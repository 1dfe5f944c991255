"""A crash of native code is located: rank, signal, phase, file and line, on any rank."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from ddp_conformance import GuaranteeError, Training
from ddp_conformance.framework.registry import checks_for
from ddp_conformance.framework.subjects import Subject
from ddp_conformance.lifecycle.mutants import beginnings as programs

from pytest_ddp import Ddp


def make_nothing() -> None:
    """A program for subjects that are never run."""


# On one rank the last one is rank 0, on two it is rank 1.
@pytest.mark.ddp(world_size=[1, 2])
@pytest.mark.parametrize(
    ("program", "phase"),
    [
        (programs.crash_in_construction, "construction of CrashesInConstruction"),
        (programs.crash_in_wrap, "DDP construction"),
        (programs.crash_in_compilation, "compilation"),
        (programs.crash_in_forward, "first forward of DDP"),
    ],
)
def test_crashes_are_located(ddp: Ddp, program: Callable[[], None], phase: str) -> None:
    subject: Subject = Training(run=program)
    check = next(check for check in checks_for(subject) if check.id == "LIF-01")
    with pytest.raises(GuaranteeError) as caught:
        check(subject)
    # Evidence is wrapped, where the folder of the checkout has it.
    _, _, evidence = str(caught.value).partition("\n")
    flat = " ".join(evidence.split())
    assert re.match(
        rf"rank {ddp.world_size - 1} died of SIGSEGV in {phase} "
        r"at \S+beginnings\.py:\d+ in crash_on_last_rank; ",
        flat,
    ), flat


def test_a_program_must_be_one_that_another_process_can_import() -> None:
    with pytest.raises(ValueError, match="run must be the function that trains"):
        Training(run=make_nothing())  # type: ignore[func-returns-value,arg-type]
    with pytest.raises(ValueError, match="readable name"):
        Training(run=lambda: None)
    with pytest.raises(ValueError, match="move it to the top level"):
        Training(run=lambda: None, name="lambda")
    with pytest.raises(ValueError, match="deaths must be some of"):
        Training(run=make_nothing, deaths=("sleeps",))  # type: ignore[arg-type]
