"""Errors in teardown that follow from the failure of an earlier phase refer to it, in few lines."""

from __future__ import annotations

from typing import Any

import pytest
from _pytest.reports import TestReport

from pytest_ddp.outcome.outcome import Ending, Hang, HangKind, RankOutcome
from pytest_ddp.protocol.messages import Phase
from tests.unit import handmade as made

GROUP = "raise ExceptionGroup('two', [ValueError('Broken pipe'), ValueError(x)])"
LOST = "Connection closed by peer"


def in_teardown(number: int, *errors: str, source: str = GROUP) -> RankOutcome:
    """A rank whose call passed, and whose teardown raised a group of these, or one."""
    many: dict[str, Any] = (
        {"ddp_errors": [f"RuntimeError: {error}" for error in errors]} if errors[1:] else {}
    )
    single = f"raise RuntimeError({errors[0]!r})"
    failed = made.failed(source if many else single, Phase.TEARDOWN, x=errors[-1], **many)
    return made.rank(number, made.report(Phase.SETUP), made.report(Phase.CALL), failed)


def torn_down(*ranks: RankOutcome, **known: Any) -> TestReport:
    return made.merged(made.dead(0), *ranks, **known)[-1]


def test_teardown_that_follows_from_a_failure_refers_to_it() -> None:
    shown = torn_down(in_teardown(1, "Broken pipe", LOST), in_teardown(2, LOST))
    assert made.verdict(shown) == "ranks 1-2 could not go on in teardown after the failure in call"
    lines = shown.longreprtext.splitlines()
    assert len(lines) < 12
    assert "(RuntimeError: Broken pipe; RuntimeError: Connection" in " ".join(
        shown.longreprtext.split()
    )
    assert lines[-1].startswith("call had failed before: rank 0 died")
    assert dict(shown.user_properties)["ddp.kind"] == "crash"


@pytest.mark.parametrize(
    "ranks",
    [
        (in_teardown(1, "Broken pipe", "no such file"), in_teardown(2, LOST)),
        (in_teardown(1, "no such file"), in_teardown(2, LOST)),
    ],
)
def test_teardown_with_an_error_of_its_own_is_shown(ranks: tuple[RankOutcome, ...]) -> None:
    shown = torn_down(*ranks)
    assert made.verdict(shown).startswith("rank 1: ")
    assert "Traceback" in shown.longreprtext or "def test_made" in shown.longreprtext


def test_teardown_that_lost_its_peers_without_a_failure_before_is_shown() -> None:
    shown = made.merged(made.passing(0), in_teardown(1, "Broken pipe", LOST))[-1]
    assert made.verdict(shown).startswith("rank 1: ")
    assert "Traceback" in shown.longreprtext


def test_ranks_that_were_stopped_after_a_failure_refer_to_it() -> None:
    stuck = made.rank(1, made.report(Phase.SETUP), made.report(Phase.CALL), ending=Ending.STOPPED)
    call, teardown = made.merged(made.passing(0, made.ASSERTED), stuck)[1:]
    assert made.verdict(teardown) == "rank 1 was stopped in teardown after the failure in call"
    assert "DDP-" not in call.longreprtext + teardown.longreprtext


def test_teardown_that_could_never_end_is_shown() -> None:
    setup, call = made.report(Phase.SETUP), made.report(Phase.CALL)
    stuck = made.rank(2, setup, call, ending=Ending.STOPPED)
    hang = Hang(HangKind.FOR_EACH_OTHER, "so it is", (), ())
    shown = made.merged(made.passing(0, made.ASSERTED), in_teardown(1, LOST), stuck, hang=hang)[-1]
    assert made.verdict(shown) == "deadlock: so it is"
