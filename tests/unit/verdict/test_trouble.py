"""Cause and consequence among the failures of several ranks, and ranks in words."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddp.outcome.outcome import Hang, HangKind, RankLine, ranks_text
from pytest_ddp.protocol.messages import Phase
from pytest_ddp.verdict.rank_failure import first_line
from tests.unit import handmade as made
from tests.unit.handmade import (
    ASSERTED,
    CLOSED,
    CRASHED,
    SPINNING,
    dead,
    failure,
    stopped,
    text,
    verdict,
)
from tests.unit.standings import code_line

SETUP, CALL, TEARDOWN = Phase

# ------------------------------------------------------------------ cause and consequence


def test_peers_of_a_failed_rank_get_a_line_each() -> None:
    report = failure(
        made.passing(0, CLOSED), made.passing(1, ASSERTED), stopped(2), made.passing(3, CLOSED)
    )
    shown = report.longreprtext
    flat = " ".join(shown.split())
    assert verdict(report) == "rank 1: assert 3 == 4"
    assert "ranks 0, 3: could not go on in call, at /src/test_made_" in flat
    assert flat.count("Connection closed by peer") == 1
    assert "rank 2: stopped in call, at tests/test_made.py:33 in test_made" in shown
    assert "distributed_c10d" not in shown
    assert "pair.cc" not in shown


def test_peers_at_one_place_get_one_line() -> None:
    """Which of both words a peer sees is chance."""
    calls = [
        made.failed("raise RuntimeError('[/a/pair.cc:5] ' + x)", x=words)
        for words in (
            "Connection closed by peer [127.0.0.1]:1. Typically",
            "Read error [127.0.0.1]:2: Connection reset by peer. Typically",
        )
    ]
    shown = text(made.passing(0, calls[0]), dead(1, stacks=CRASHED), made.passing(2, calls[1]))
    before_code = " ".join(shown.partition("DDP-")[0].split())
    (line,) = [line for line in before_code.split("rank") if "0, 2:" in line]
    assert line.endswith("(Connection closed by peer; Read error: Connection reset by peer)")


@pytest.mark.parametrize(
    "words",
    [
        "Connection closed by peer [127.0.0.1]:5004",
        "Read error [127.0.0.1]:6004: Connection reset by peer",
        "writev [127.0.0.1]:6004: Broken pipe",
        "Application timeout caused pair closure",
        "Timed out waiting 2000ms for recv operation to complete",
        "ncclRemoteError: A call failed possibly due to a network error",
        "NCCL communicator was aborted on rank 1",
        "failed to recv, got 0 bytes",
        "wait timeout after 300000ms, keys: /default_pg/0//cpu//0/1",
    ],
)
def test_broken_connection_is_secondary(words: str) -> None:
    early = made.passing(0, made.failed("raise RuntimeError(x)", x=words))
    late = made.shifted(made.passing(1, ASSERTED), CALL, 1.75)
    assert verdict(failure(early, late)) == "rank 1: assert 3 == 4"
    assert verdict(failure(early, dead(1))) == "rank 1 died of SIGSEGV in call"


def test_refusal_of_the_fixture_is_secondary() -> None:
    source = "from pytest_ddp import DdpError\nraise DdpError('rank 1 died')"
    report = failure(made.passing(0, made.failed(source)), dead(1))
    assert verdict(report) == "rank 1 died of SIGSEGV in call"
    assert " (DdpError: rank 1 died)" in " ".join(report.longreprtext.split())


def test_broken_connection_is_the_cause_where_there_is_no_other() -> None:
    report = failure(made.passing(0, CLOSED), made.passing(1))
    assert verdict(report) == "rank 0: Connection closed by peer"
    assert "E       RuntimeError: [/__w/" in report.longreprtext


def test_broken_connection_is_the_cause_beside_ranks_that_were_stopped() -> None:
    report = failure(made.passing(0, CLOSED), stopped(1))
    assert verdict(report) == "rank 0: Connection closed by peer"
    assert "rank 1: stopped in call, at tests/test_made.py:33" in report.longreprtext


@pytest.mark.parametrize(
    "source",
    [
        "assert 'Connection closed by peer' == x, \"assert 'Connection closed by peer' == 'b'\"",
        "raise AssertionError('Connection closed by peer')",
        "import pytest\npytest.fail('Connection closed by peer')",
        "raise ValueError('a\\nConnection closed by peer')",
    ],
)
def test_failure_that_speaks_of_connections_is_not_secondary(source: str) -> None:
    speaking = made.passing(0, made.failed(source, x="b"))
    assert verdict(failure(speaking, dead(1, at=9.0))).startswith("rank 0: ")


def test_abort_by_a_broken_connection_is_secondary() -> None:
    """gloo's own thread may find the connection closed first, and ends the process."""
    stderr = "terminate called after throwing an instance of 'gloo::IoException'\nConnection reset"
    aborted = dead(0, -signal.SIGABRT, stderr=stderr, at=1.0)
    assert verdict(failure(aborted, dead(1, -signal.SIGKILL))).startswith("rank 1 died of SIGKILL")


def test_abort_by_a_mismatch_is_not_secondary() -> None:
    """The connections of the aborted rank break in the same moment."""
    stderr = "gloo::EnforceNotMet\nwhat(): op.preamble.length <= op.nbytes\nConnection reset"
    aborted = dead(0, -signal.SIGABRT, stderr=stderr, at=1.0)
    assert verdict(failure(aborted, dead(1, 3))).startswith("rank 0 died of SIGABRT")


# ------------------------------------------------------------------ words


@pytest.mark.parametrize(
    ("ranks", "shown"),
    [
        ([1], "rank 1"),
        ([0, 1], "ranks 0-1"),
        ([0, 2], "ranks 0, 2"),
        ([3, 0, 1], "ranks 0-1, 3"),
        ([0, 1, 2, 5, 7, 8], "ranks 0-2, 5, 7-8"),
        ([2, 2], "rank 2"),
    ],
)
def test_ranks_in_words(ranks: list[int], shown: str) -> None:
    assert ranks_text(ranks) == shown


@given(st.sets(st.integers(0, 70), min_size=1))
def test_ranks_in_words_name_every_rank_and_no_other(ranks: set[int]) -> None:
    spans = ranks_text(ranks).partition(" ")[2].split(", ")
    named = set()
    for span in spans:
        first, _, last = span.partition("-")
        named |= set(range(int(first), int(last or first) + 1))
    assert named == ranks


@given(st.text())
def test_first_line_is_one_short_line(words: str) -> None:
    assert len(first_line(words).splitlines()) <= 1
    assert len(first_line(words)) <= 300


# ------------------------------------------------------------------ folding


@pytest.mark.parametrize(
    ("source", "folded"),
    [
        ("raise OSError(f'rank {x}: no data')", True),
        ("raise OSError(f'[rank{x}] no data of rank {x} in /data/{x}')", True),
        ("raise OSError(f'RANK={x} and 1 of 3')", True),
        (
            "assert x == 5, f'assert {x} == 5\\n + where {x} = <ddp rank {x} of 3, gloo>.rank'",
            True,
        ),
        ("assert x == 5, f'assert {x} == 5'", False),
        ("raise OSError(f'rank {x + 1}: no data')", False),
        ("raise OSError(f'rank {x}: loss {x}.5')", False),
        ("raise OSError(f'rank {x}: loss {2 * x}')", False),
        ("raise OSError(f'shard {x} of rank 0')", False),
    ],
)
def test_errors_that_differ_in_the_ranks_own_numbers_are_one(source: str, *, folded: bool) -> None:
    ranks = [made.passing(number, made.failed(source, x=number)) for number in range(3)]
    assert verdict(failure(*ranks)).startswith("ranks 0-2: " if folded else "rank 0: ")
    first = text(*ranks).splitlines()[0]
    assert first.startswith("ranks 0-2 of 3 failed (shown: rank 0) in call: ") is folded


# ------------------------------------------------------------------ peers

BARRIER = "barrier #1 of the default group"


def waiting(*others: str, culprits: tuple[int, ...] = (0,)) -> Hang:
    line = code_line("a.py:3")
    rows = [RankLine(n, "waits", ("call",), each, line) for n, each in enumerate(others, 1)]
    table = (RankLine(0, "ended", (), "", None), *rows)
    return Hang(HangKind.FOR_ENDED, "rank 1 waits", culprits, table)


def test_peers_that_wait_in_one_collective_take_one_line() -> None:
    hang = waiting(BARRIER, BARRIER)
    shown = text(made.passing(0, ASSERTED), stopped(1), stopped(2, SPINNING), hang=hang)
    assert " ".join(shown.split()).endswith(
        f"ranks 1-2: stopped in call, waiting in {BARRIER} at tests/test_made.py:33 in test_made; "
        f"waiting in {BARRIER} at tests/test_made.py:50 in spin"
    )
    assert "deadlock" not in shown


@pytest.mark.parametrize(
    "hang",
    [
        waiting(BARRIER, "all_reduce #1 of the default group"),
        waiting(BARRIER, BARRIER, culprits=(0, 3)),
        waiting(BARRIER, BARRIER, culprits=()),
        replace(waiting(BARRIER, BARRIER), kind=HangKind.MISMATCH),
    ],
)
def test_proof_that_has_more_than_the_failure_stays(hang: Hang) -> None:
    shown = text(made.passing(0, ASSERTED), stopped(1), stopped(2), made.passing(3), hang=hang)
    assert hang.sentence in shown
    assert "rank 1  waits" in shown


def test_long_list_of_places_is_cut() -> None:
    calls = [made.failed(f"{'pass;' * n}raise RuntimeError('Broken pipe')") for n in range(5)]
    ranks = [made.passing(n, call) for n, call in enumerate(calls)]
    shown = " ".join(text(*ranks, dead(5)).split())
    assert shown.count("could not go on in call") == 1
    assert "; 2 more (" in shown
