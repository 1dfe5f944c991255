"""Exceptions whose handlers ranks are in, in the words of the verdict."""

from __future__ import annotations

import pytest

from pytest_ddp.outcome.outcome import Hang, HangKind, RankOutcome
from pytest_ddp.protocol.rank_status import Handled
from pytest_ddp.verdict.diagnosis import note, verdict_prefix
from tests.unit import handmade as made
from tests.unit.handmade import ASSERTED, CLOSED, dead, failure, gloo, stopped, text, verdict
from tests.unit.standings import code_line, standing

FIRST = Handled("ValueError", "label 17", code_line("/src/data.py:7 in read"))
OTHER_LABEL = Handled("ValueError", "label 18", code_line("/src/data.py:7 in read"))
AFTER = Handled("RuntimeError", "training failed", code_line("/src/train.py:3 in run"), FIRST)
SECOND = Handled("OSError", "", code_line("/src/data.py:9 in open"))
CHAIN = """try:
    raise ValueError('label 17')
finally:
    raise RuntimeError('Connection closed by peer')
"""


def within(rank: int, error: Handled) -> RankOutcome:
    return stopped(rank, status=standing(handled=error))


@pytest.mark.parametrize(
    ("handled", "begins", "ends"),
    [
        ({0: None, 1: None}, "", ""),
        ({0: None, 1: FIRST}, "while handling ValueError: label 17 (rank 1, /src/data.py:7): ", ""),
        (
            {0: None, 1: AFTER},
            "while handling RuntimeError: training failed (rank 1, /src/train.py:3), "
            "raised after ValueError: label 17 (/src/data.py:7): ",
            "",
        ),
        (
            {0: FIRST, 1: OTHER_LABEL, 2: None},
            "while handling ValueError: label 17 (ranks 0-1, /src/data.py:7): ",
            "",
        ),
        (
            {0: FIRST, 1: SECOND},
            "while handling ValueError: label 17 (rank 0, /src/data.py:7) "
            "and OSError (rank 1, /src/data.py:9): ",
            "",
        ),
        (
            {0: FIRST, 1: OTHER_LABEL},
            "",
            "all ranks wait in a handler of ValueError: label 17 (/src/data.py:7)",
        ),
    ],
)
def test_words(handled: dict[int, Handled | None], begins: str, ends: str) -> None:
    assert (verdict_prefix(handled), note(handled)) == (begins, ends)


def test_kind_stays_and_the_rank_that_has_ended_handles_nothing() -> None:
    hang = Hang(HangKind.MISMATCH, "so it is", (), ())
    seen = failure(made.passing(0, status=standing(handled=FIRST)), within(1, FIRST), hang=hang)
    begin = "while handling ValueError: label 17 (rank 1, /src/data.py:7): "
    assert verdict(seen) == f"{begin}mismatch: so it is"
    assert dict(seen.user_properties)["ddp.kind"] == "mismatch"


def test_rank_stopped_beside_a_failure_has_it_in_its_line() -> None:
    shown = text(made.passing(0, ASSERTED), within(1, FIRST))
    assert "rank 1: stopped in call while handling ValueError: label 17, at" in shown


def test_rank_whose_handler_lost_its_peers_is_no_cause_beside_another() -> None:
    seen = failure(made.passing(0, made.failed(CHAIN)), dead())
    assert verdict(seen).startswith("rank 1 died of SIGSEGV")
    words = " ".join(seen.longreprtext.split())
    assert "(while handling ValueError: label 17: RuntimeError: Connection closed by peer)" in words


def test_rank_whose_handler_lost_its_peers_is_the_cause_where_there_is_no_other() -> None:
    seen = failure(made.passing(0, CLOSED), made.passing(1, made.failed(CHAIN)))
    words = "while handling ValueError: label 17: RuntimeError: Connection closed by peer"
    assert verdict(seen) == f"rank 1: {words}"


def test_chain_of_broken_connections_is_none() -> None:
    chain = (
        "try:\n    raise OSError('Broken pipe')\nfinally:\n    raise RuntimeError('pair closure')"
    )
    seen = failure(made.passing(0, gloo("pair closure")), made.passing(1, made.failed(chain)))
    assert "while handling" not in seen.longreprtext
