"""What users read, as they read it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import pytest

from pytest_ddp.extensions.explore import words
from pytest_ddp.extensions.explore.conflicts import Conflict
from pytest_ddp.extensions.explore.ranks.accesses import FROM_ANY, Access
from pytest_ddp.extensions.explore.run_events import RankThread
from pytest_ddp.extensions.explore.schedule import Hold, Schedule, parse_schedule
from tests.unit.extensions.explore.programs import changes, event, reads

BEST = Hold(RankThread(1), "open:best.ckpt")
LOADS = event(1, 1, "open:best.ckpt", site="trainer.py:88", uses=[reads("best.ckpt", "entry")])
REMOVES = event(0, 2, site="trainer.py:95", uses=[changes("best.ckpt", "entry", "removes")])
TOO_EARLY = Conflict(LOADS, REMOVES, LOADS.accesses[0], REMOVES.accesses[0], LOADS)


def conflict(one: Access, other: Access, *, threads: Sequence[RankThread]) -> Conflict:
    first = event(threads[0], 1, "p", site="a.py:1")
    return Conflict(first, event(threads[1], 2, "p", site="a.py:2"), one, other, first)


def shown(
    schedule: str,
    sites: Mapping[str, str],
    turned: Mapping[str, Conflict] | None = None,
    others: str = words.other_runs(4, 20, 2),
) -> str:
    by_hold = {parse_schedule(hold)[0]: site for hold, site in sites.items()}
    conflicts = {parse_schedule(hold)[0]: each for hold, each in (turned or {}).items()}
    return words.heading(parse_schedule(schedule), by_hold, conflicts, others)


def test_the_heading_of_a_finding() -> None:
    text = """\
        fails when rank 1 is late before open(best.ckpt) at trainer.py:88; passes otherwise
          (schedule 4 of 20; 2 plain runs passed)
          rank 1 reads best.ckpt at trainer.py:88; rank 0 removes it at trainer.py:95;
          nothing orders the two"""
    hold = "1@open:best.ckpt#1"
    assert shown(hold, {hold: "trainer.py:88"}, {hold: TOO_EARLY}) == textwrap.dedent(text)


def test_the_heading_of_a_replay_leaves_out_other_runs() -> None:
    hold = "1@open:best.ckpt#1"
    assert shown(hold, {}, others="") == "fails when rank 1 is late before open(best.ckpt)"


@pytest.mark.parametrize(
    ("schedule", "line"),
    [
        ("1@begin#1", "fails when rank 1 begins late"),
        ("0.2@begin#1", "fails when thread 2 of rank 0 begins late"),
        ("2@all_reduce#1", "fails when rank 2 is late before all_reduce"),
        ("2@all_reduce#2", "fails when rank 2 is late before its 2nd all_reduce"),
        ("2@store.set:done#111", "fails when rank 2 is late before its 111th store.set(done)"),
        ("2@point:swap#23", "fails when rank 2 is late before its 23rd point(swap)"),
        ("1@begin#1+0@begin#1", "fails when rank 1 and then rank 0 are late"),
        ("1@a#1+1@b#1", "fails when rank 1 is late 2 times"),
        (
            "1@a#1+0.1@b#1+2@c#1",
            "fails when rank 1 and then thread 1 of rank 0 and then rank 2 are late",
        ),
    ],
)
def test_the_first_line(schedule: str, line: str) -> None:
    assert shown(schedule, {}, others="").splitlines()[0] == line
    assert shown(schedule, {}).splitlines()[0] == f"{line}; passes otherwise"


def test_a_thread_that_begins_late_is_shown_by_the_line_that_starts_it() -> None:
    line = "fails when thread 2 of rank 0, started at t.py:7, begins late; passes otherwise"
    assert shown("0.2@begin#1", {"0.2@begin#1": "t.py:7"}).splitlines()[0] == line


def test_several_holds_are_listed_each_with_its_conflict() -> None:
    sites = {"1@open:log#1": "t.py:5", "0@open:log#2": "t.py:7"}
    text = """\
        fails when rank 1 and then rank 0 are late; passes otherwise
          1. rank 1 is late before open(log) at t.py:5
             rank 1 reads best.ckpt at trainer.py:88; rank 0 removes it at trainer.py:95;
             nothing orders the two
          2. rank 0 is late before its 2nd open(log) at t.py:7
          (schedule 4 of 20; 2 plain runs passed)"""
    turned = {"1@open:log#1": TOO_EARLY}
    assert shown("1@open:log#1+0@open:log#2", sites, turned) == textwrap.dedent(text)


def test_long_names_keep_their_ends_and_lines_their_width() -> None:
    name = f"checkpoints/{'step-000100/' * 6}model.distcp"
    hold = f"1@open:{name}#1"
    sites = {hold: "tests/integration/checkpointing/test_trainer.py:88"}
    uses = reads(name), changes(name, verb="removes")
    threads = RankThread(1), RankThread(0, 3)
    lines = shown(hold, sites, {hold: conflict(*uses, threads=threads)}).splitlines()
    assert "open(...0100/model.distcp) at test_trainer.py:88; passes" in lines[0]
    assert all(len(line) <= 100 for line in lines)
    assert words.replay_line(parse_schedule(hold)) == f"Replay: --ddp-schedule='{hold}'"


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        (
            reads("d", "folder", "lists"),
            changes("d", "folder", "makes"),
            "rank 1 lists d at a.py:1; thread 2 of rank 0 makes an entry of it at a.py:2",
        ),
        (
            changes(".", "folder", "removes"),
            reads(".", "folder", "lists"),
            "rank 1 removes an entry of the folder . at a.py:1; thread 2 of rank 0 lists it at "
            "a.py:2",
        ),
        (
            changes("n", "key", "adds to"),
            changes("n", "key", "adds to"),
            "rank 1 adds to key n at a.py:1; thread 2 of rank 0 adds to it at a.py:2",
        ),
        (
            changes("l", "lock", "takes"),
            changes("l", "lock", "takes"),
            "rank 1 takes lock l at a.py:1; thread 2 of rank 0 takes it at a.py:2",
        ),
        (
            changes("rank 3, tag 5", "mailbox", "sends to"),
            changes("rank 3, tag 5", "mailbox", "sends to"),
            "rank 1 sends to rank 3, tag 5 at a.py:1; thread 2 of rank 0 sends to rank 3, tag 5 at "
            "a.py:2",
        ),
        (
            changes("rank 0", "mailbox", FROM_ANY),
            changes("rank 0", "mailbox", FROM_ANY),
            "rank 1 receives from any rank at a.py:1; thread 2 of rank 0 receives from any rank at "
            "a.py:2",
        ),
        (
            reads("ckpt", "entry", "uses"),
            changes("ckpt", "entry", "removes"),
            "rank 1 uses ckpt at a.py:1; thread 2 of rank 0 removes it at a.py:2",
        ),
    ],
)
def test_a_conflict_reads_as_a_sentence(one: Access, other: Access, text: str) -> None:
    made = conflict(one, other, threads=(RankThread(1), RankThread(0, 2)))
    assert "; ".join(words.conflict_clauses(made)) == f"{text}; nothing orders the two"


def test_a_use_without_a_line_of_the_users_has_none() -> None:
    made = TOO_EARLY._replace(second=REMOVES._replace(site=""))
    assert words.conflict_clauses(made)[1] == "rank 0 removes it"


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ((3, 0, 0, 6), "explored: 3 conflicts, all orders, 6 runs"),
        ((1, 0, 0, 5), "explored: 1 conflict, all orders, 5 runs"),
        ((0, 0, 0, 4), "explored: no conflict, 4 runs"),
        ((12, 8, 0, 20), "explored: 12 conflicts, all orders of 4 of them, 20 runs"),
        ((1, 1, 1, 5), "explored: 1 conflict, not all orders, 1 undecided, 5 runs"),
    ],
)
def test_what_is_shown_beside_a_green_test(counts: tuple[int, int, int, int], text: str) -> None:
    assert words.explored(*counts) == text


@pytest.mark.parametrize(
    ("schedule", "passed", "text"),
    [
        ("1@open:a#3", 2, "rank 1 passed open(a) 2 times, so it was not held before the 3rd"),
        ("1@open:a#2", 1, "rank 1 passed open(a) 1 time, so it was not held before the 2nd"),
        ("1@open:a#1", 0, "rank 1 did not come to open(a), so it was not held there"),
        ("1.2@begin#1", 0, "thread 2 of rank 1 did not begin, so it was not held there"),
    ],
)
def test_a_point_that_was_not_reached(schedule: str, passed: int, text: str) -> None:
    (hold,) = parse_schedule(schedule)
    reason, _, fix = words.not_reached(hold, passed).partition("\n\n")
    assert reason == text
    assert "--ddp-explore=20" in fix


def test_words_for_a_held_thread_in_a_hang_text() -> None:
    assert words.held_phase(BEST) == "held before open(best.ckpt)"
    assert words.held_phase(Hold(RankThread(0), "begin")) == "held at its begin"


def test_a_test_that_fails_now_and_then() -> None:
    assert words.flaky_heading(2, 5) == "fails in 2 of 5 runs without a hold"


@pytest.mark.parametrize(
    ("is_timeout", "why"),
    [
        (False, "a bound ended a hold before, so a limit of the test may have expired"),
        (True, "holds took much of its time, so that may be no race"),
    ],
)
def test_a_failure_that_is_undecided(is_timeout: bool, why: str) -> None:
    schedule: Schedule = (BEST,)
    made = words.undecided("test_a.py::test_queue", schedule, "Empty", is_timeout=is_timeout)
    assert made == textwrap.dedent(f"""\
        undecided: test_a.py::test_queue
          Empty
          ({why})
          Replay: --ddp-schedule='1@open:best.ckpt#1'""")


def test_the_lines_of_the_summary() -> None:
    reasons = ["it has one rank", "it fails", "it has one rank"]
    assert words.not_explored(reasons) == "3 tests not explored: it has one rank (2), it fails (1)"
    assert words.not_explored(reasons[:1]) == "1 test not explored: it has one rank"
    assert words.session(1, 40, 0) == "1 test explored with 40 holds"
    assert (
        words.session(0, 1, 1)
        == "1 hold, 1 of them ended by a bound, not because all others waited"
    )
    assert words.session(2, 40, 1) == (
        "2 tests explored with 40 holds, 1 of them ended by a bound, not because all others waited"
    )
