"""The screen at the end: one screen when all is well, what is broken in full, and honest sums."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ddp_conformance.framework.mutants import all_mutants
from ddp_conformance.framework.registry import known_ids
from ddp_conformance.frontend.report import Judged, Kill
from ddp_conformance.frontend.screen import ScreenRun, last_line, numbers, screen, titles
from ddp_conformance.frontend.table import Word

from conformance.systems import REFERENCE

WITNESS = ("size 1, epoch 0: index 0 delivered by ranks 0 and 1", "and so on " * 12)


def judged(
    word: Word = Word.PASSED, guarantee: str = "SMP-01", subject: str = "mine", system: str = ""
) -> Judged:
    witness = WITNESS if word is Word.FAILED else ()
    return Judged(subject, "loader", guarantee, 2, word, "a reason", witness, 0.5, system)


def kill(word: Word, mutant: str = "everything", world_size: int = 2) -> Kill:
    return Kill(mutant, "it is not split", "SMP-01", world_size, word)


WHOLE = ScreenRun(
    judged=[
        judged(Word.PASSED, guarantee, part, system)
        for guarantee in known_ids()
        for system, parts in REFERENCE.items()
        for part in parts
    ],
    kills=[
        Kill(mutant.subject.name, mutant.defect, mutant.guarantee, size, Word.KILLED)
        for mutant in all_mutants()
        for size in mutant.world_sizes
    ],
    others={"passed": 1015, "skipped": 3},
    foreign_warnings=41,
    report="report: build/conformance/report.html, build/conformance/report.json",
)
"""All guarantees on all systems of the reference, and all mutants."""


def texts(run: ScreenRun) -> list[str]:
    return [line for line, _ in screen(run)]


def test_all_guarantees_fit_on_one_screen() -> None:
    lines = texts(WHOLE)
    assert len(lines) <= 39, "the title of the section is one line more"
    assert max(map(len, lines)) <= 100
    for prefix in titles():
        (row,) = (line for line in lines if line.startswith(f"{prefix} "))
        assert row.endswith(
            f"{sum(map(len, REFERENCE.values()))} parts of {len(REFERENCE)} systems"
        )
    assert WHOLE.report in lines
    count, mutants = len(known_ids()), len(all_mutants())
    assert last_line(WHOLE) == (
        f"{count} of {count} guarantees are kept by {len(REFERENCE)} systems; "
        f"{mutants} of {mutants} mutants are killed",
        True,
    )
    assert lines[-1] == last_line(WHOLE)[0]


def test_a_broken_guarantee_is_above_the_rows_in_full() -> None:
    broken = judged(Word.FAILED, "SMP-02", "other", "resnet")
    lines = texts(replace(WHOLE, judged=[*WHOLE.judged, broken]))
    assert lines[0].startswith("SMP-02: ")
    end = lines.index("")
    above = " ".join(" ".join(lines[:end]).split())
    assert "FAILED: other, 2 ranks" in above
    assert all(" ".join(line.split()) in above for line in WITNESS)
    assert max(map(len, lines[:end])) <= 100
    (row,) = (line for line in lines if line.startswith("SMP sampling"))
    parts = sum(map(len, REFERENCE.values()))
    assert f"{parts} of {parts + 1} parts of" in row


def test_a_path_in_evidence_stays_whole() -> None:
    path = f"/tmp/ddp-conformance-{'x' * 60}/run-1"
    one = replace(judged(Word.FAILED), witness=(f"size 1: it was not written: {path}",))
    assert f"      {path}" in texts(ScreenRun(judged=[one]))


def test_a_row_names_systems_and_how_many_parts_keep_the_group() -> None:
    run = ScreenRun(
        [
            judged(system="resnet"),
            judged(system="resnet", subject="other"),
            judged(Word.EXPECTED, "SMP-02", "other", "resnet"),
            judged(system="saliency", subject="third"),
            judged(Word.NOT_BOUND, subject="fourth", system="windows"),
            judged(guarantee="MET-01", subject="alone"),
        ]
    )
    assert (
        "SMP sampling  01-02       2      resnet 1 of 2 (1 not, as expected), saliency 1"
    ) in texts(run)
    assert "MET metrics   01          2      alone" in texts(run)


@pytest.mark.parametrize(
    ("run", "line", "good"),
    [
        (ScreenRun([judged()]), "1 of 1 guarantees are kept by 1 part", True),
        (
            ScreenRun([judged(), judged(Word.FAILED)]),
            "0 of 1 guarantees are kept by no part; 1 broken or undecided",
            False,
        ),
        (
            ScreenRun([judged(), judged(Word.UNKNOWN, subject="other", system="resnet")]),
            "0 of 1 guarantees are kept by 1 part; 1 broken or undecided",
            False,
        ),
        (
            ScreenRun(
                [judged(), judged(Word.EXPECTED, "SMP-02"), judged(Word.NOT_BOUND, "SMP-03")]
            ),
            "1 of 2 guarantees are kept by 1 part; 1 broken as expected",
            True,
        ),
        (
            ScreenRun([judged(Word.NOT_BOUND), judged(Word.SKIPPED)]),
            "no guarantee was checked",
            True,
        ),
        (
            ScreenRun(kills=[kill(Word.KILLED), kill(Word.SKIPPED, "on a GPU")]),
            "1 of 1 mutants are killed",
            True,
        ),
        (
            ScreenRun(kills=[kill(Word.KILLED), kill(Word.SURVIVED, world_size=3)]),
            "0 of 1 mutants are killed",
            False,
        ),
        (
            ScreenRun([judged()], others={"passed": 3, "failed": 1}),
            "1 of 1 guarantees are kept by 1 part; 1 other test failed",
            False,
        ),
        (
            ScreenRun([judged()], missing=2),
            "1 of 1 guarantees are kept by 1 part; 2 without a verdict",
            False,
        ),
        (
            ScreenRun([judged()], exit_code=1),
            "1 of 1 guarantees are kept by 1 part; but pytest ends with exit code 1",
            False,
        ),
    ],
)
def test_the_last_line_sums_up(run: ScreenRun, line: str, good: bool) -> None:
    assert last_line(run) == (line, good)
    assert screen(run)[-1] == (line, good)


def test_the_table_of_a_small_run_is_shown() -> None:
    small = ScreenRun([judged(guarantee=guarantee) for guarantee in ("SMP-01", "SMP-02")])
    assert "  SMP-02      passed       0.5  a reason" in texts(small)
    assert not any(line.startswith("  SMP-02") for line in texts(WHOLE))
    assert any(line.startswith("  SMP-02") for line in texts(replace(WHOLE, whole_table=True)))
    long = replace(judged(), reason="a reason that goes on " * 5)
    row, *rest = (line for line in texts(ScreenRun([long])) if "goes on" in line)
    assert row.startswith("  SMP-01 *    passed       0.5  a reason")
    assert len(row) <= 100
    assert rest == [f"{' ' * 32}reason that goes on a reason that goes on"]


def test_a_group_of_which_nothing_was_checked_has_no_row() -> None:
    lines = texts(ScreenRun([judged(), judged(Word.NOT_BOUND, "WIN-06")]))
    assert not any(line.startswith("WIN ") for line in lines)
    assert not any(line.startswith("group") for line in texts(ScreenRun([judged(Word.NOT_BOUND)])))


def test_what_survived_or_could_not_be_tried_is_named() -> None:
    lines = texts(ScreenRun(kills=[kill(Word.SURVIVED), kill(Word.SKIPPED, "on a GPU")]))
    assert lines[0] == "SURVIVED: the mutant everything of SMP-01 (it is not split), 2 ranks"
    assert "mutants that could not be tried on this machine: 1" in lines


def test_numbers_that_follow_each_other_are_one() -> None:
    assert numbers([3, 1, 2, 5, 8, 7]) == "01-03 05 07-08"
