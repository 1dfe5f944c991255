"""The zoo of races: its records, the places of its programs, and its table."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from fidelity.races.delays import line_of, places, repeated, with_places
from fidelity.races.exploring import BOUNDED, FOUND, HOLDS, REPLAY, UNDECIDED, Exploration
from fidelity.races.records import Program, programs
from fidelity.races.rivals import Attempt
from fidelity.races.running import PROGRAMS
from fidelity.races.table import Row, accused, page
from fidelity.races.truth import planned
from pytest_ddp.extensions.explore import words
from pytest_ddp.extensions.explore.schedule import parse_schedule
from pytest_ddp.extensions.explore.tally import Tally

PROGRAM = """\
from __future__ import annotations

class Saver:
    def save(self):
        with open("a") as file:
            file.write("1")

def test_it():
    for step in range(2):
        if step:
            def inside():
                step.bit_length()
            inside()
        else:
            pass
    try:
        Saver()
    except ValueError:
        raise
"""


def test_each_program_has_a_record_and_each_record_a_program() -> None:
    files = {
        path.stem: int(re.findall(r"world_size=(\d)", path.read_text())[0])
        for kind in ("races", "legal")
        for path in (PROGRAMS / kind).glob("test_*.py")
    }
    assert {program.name: program.ranks for program in programs()} == files


def test_the_zoo_has_what_it_promises() -> None:
    races = [program for program in programs() if program.is_race]
    twins = {program.twin for program in programs() if program.twin}

    def count(kind: str) -> int:
        return sum(kind in program.kinds for program in races)

    assert len([program for program in races if "public code" not in program.kinds]) >= 20
    assert len(programs()) - len(races) >= 25
    assert {program.name for program in races} >= twins
    assert all(program.source.startswith("https:") for program in races if "issue" in program.kinds)
    least = {"issue": 8, "many points": 6, "two holds": 4, "threads": 3, "edge": 3}
    assert [kind for kind, number in least.items() if count(kind) < number] == []
    assert [program.name for program in races if not program.delays] == []


def test_a_race_fails_only_under_all_of_its_delays() -> None:
    (program,) = programs("test_lock_file")
    kinds = {kind for kind, _ in planned(program)}
    alone = [delays for kind, delays in planned(program) if kind == "alone"]
    assert kinds == {"plain", "late", "alone", "place"}
    assert {len(delays) for delays in alone} == {1}


def test_places_are_before_each_statement_of_a_function() -> None:
    assert places(PROGRAM) == [5, 6, 9, 10, 11, 12, 13, 15, 16, 17, 19]
    assert repeated(PROGRAM) == {5, 6, 4, 9, 10, 11, 12, 13, 15}
    made = with_places(PROGRAM)
    called = [int(line) for line in re.findall(r"_late\((\d+)\)", made)]
    assert called == places(PROGRAM)
    assert made.splitlines()[:2] == [
        "from __future__ import annotations",
        "from races_late import late as _late",
    ]


def test_a_place_is_named_by_the_begin_of_its_only_statement() -> None:
    assert line_of(PROGRAM, "file.write") == 6
    with pytest.raises(ValueError, match="0 statements begin with"):
        line_of(PROGRAM, "file.read")
    with pytest.raises(ValueError, match=r"2 statements begin with 's', lines \[4, 8\]"):
        line_of("def f():\n    if 1:\n        pass\n    s = 1\n\n\ndef g():\n    s = 2\n", "s")


def test_a_find_is_read_from_the_text() -> None:
    text = (
        "fails when rank 1 is late before open(best.ckpt) at trainer.py:88; passes otherwise\n"
        "  (schedule 4 of 20; 2 plain runs passed)\n"
        "Replay: --ddp-schedule='1@open:best.ckpt#1'\n"
    )
    assert FOUND.findall(text) == ["4"]
    assert REPLAY.findall(text) == ["1@open:best.ckpt#1"]
    long = text.replace("Replay: ", "Replay:\n  ")
    assert REPLAY.findall(long) == ["1@open:best.ckpt#1"]


def test_numbers_of_a_session_are_found_in_its_summary() -> None:
    tally = Tally()
    tally.explored, tally.holds, tally.expired = 2, 40, 3
    schedule = parse_schedule("1@open:best.ckpt#1")
    tally.undecided = [words.undecided("t.py::test", schedule, "Empty", is_timeout=False)] * 2
    summary = "\n".join(tally.lines())
    assert (HOLDS.findall(summary), BOUNDED.findall(summary)) == (["40"], ["3"])
    assert len(UNDECIDED.findall(summary)) == 2


def explored(**changes: object) -> Exploration:
    found = Exploration({"test_a": "failed"}, 4, "1@open:a#1", 1, 50, 0, 9.6, "")
    return replace(found, **changes)  # type: ignore[arg-type]


def race(*found: Exploration, replayed: bool = True) -> Row:
    program = Program("test_a", 2, True, "https://a/b, c", ("many points",))
    attempts = {"count": Attempt(9, False), "random sleeps": Attempt(3, True)}
    attempts["each point"] = Attempt(7, False)
    return Row(program, list(found), 120, [replayed] * 6, attempts)


def test_a_row_is_right_if_the_race_is_found_and_replayed_each_time() -> None:
    assert race(explored(), explored()).is_right
    assert not race(explored(), explored(outcomes={"test_a": "passed"})).is_right
    assert not race(explored(replay="")).is_right
    assert not race(explored(), replayed=False).is_right


def test_a_legal_program_that_fails_or_does_not_run_is_reported() -> None:
    outcomes = {
        "test_b": "passed",
        "test_c": "skipped",
        "test_d": "failed",
        "test_e": "did not run",
    }
    assert accused([explored(outcomes={"test_b": "passed"}), explored(outcomes=outcomes)]) == [
        "test_d",
        "test_e",
    ]


def test_the_table_has_what_was_found() -> None:
    legal = explored(outcomes={"test_b": "passed", "test_d": "failed"}, undecided=2)
    missed = explored(outcomes={"test_a": "passed"}, bounded=0)
    made = page([race(explored(), missed)], [legal])
    assert (
        "| [a](https://a/b) | 2 | 120 | 4, none | 10, 10 | 6 of 6 | none of 9 | run 3 | none of 7 |"
    ) in made
    assert "Of 2 legal programs in 1 session (10 s), accused: d; undecided: 2." in made
    assert "2 of 150 holds ended by time." in made
    assert (
        "Of 1 races among many points in equal time: explored 1, count 0, random sleeps 1, "
        "each point 0."
    ) in made
