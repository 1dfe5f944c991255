"""Snapshots of hand-made operations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddp.extensions.comms.snapshot import SnapshotLine, difference, lines_of, text_of
from tests.unit.extensions.comms.test_records import GATHER, OBJECT, REDUCE


def operations(*what: str, step: int = 1) -> list[SnapshotLine]:
    return [
        SnapshotLine(step, "", one, f"train.py:{number} in f") for number, one in enumerate(what, 1)
    ]


def file_of(*ranks: list[SnapshotLine], torch: str = "2.13.0") -> str:
    return text_of("test_step", torch, ranks)


def changed(
    before: list[list[SnapshotLine]], now: list[list[SnapshotLine]], torch: str = "2.13.0"
) -> str | None:
    return difference(file_of(*before, torch=torch), file_of(*now), now, "a.txt")


def test_lines_have_what_is_not_usual() -> None:
    records = [
        GATHER,
        OBJECT,
        replace(REDUCE, reduce_op="AVG", dtype="bfloat16", bytes=3 << 19, belongs_to=None),
        replace(REDUCE, operation="barrier", bytes=0, issued_in=None, belongs_to=None),
        replace(GATHER, cpu_form=True, bytes=1025, belongs_to=("a.0.bias", "a.0.weight")),
    ]
    assert [(line.module, line.what) for line in lines_of(records)] == [
        ("layers.*", "all_gather 16 B dp"),
        ("layers.*", "all_reduce AVG 1.5 MiB bfloat16 tp"),
        ("", "barrier tp"),
        ("a.*.bias .. a.*.weight", "all_gather* 1025 B dp"),
    ]


def test_sizes_that_differ_have_different_texts() -> None:
    sizes = [1 << 30, (1 << 30) + 1, 10_001 << 10, *range(1 << 20, 9 << 20, 1 << 10)]
    lines = lines_of([replace(GATHER, bytes=size) for size in sizes])
    assert len({line.what for line in lines}) == len(sizes)
    assert lines_of([replace(GATHER, bytes=1045 << 10)])[0].what == "all_gather 1045 KiB dp"


def test_repetitions_are_folded() -> None:
    found = operations("a 1 B dp", *["b 1 B dp", "c 1 B dp"] * 3, "a 1 B dp")
    assert file_of(found).splitlines()[1:] == [
        "rank 0",
        "  step 1",
        "    a 1 B dp",
        "    3 x (b 1 B dp; c 1 B dp)",
        "    a 1 B dp",
    ]


def test_ranks_that_do_the_same_are_one_entry() -> None:
    same, other = operations("a 1 B dp"), operations("b 1 B dp", step=0)
    assert file_of(same, same, other, [], same).splitlines() == [
        "# ddp.comms: test_step; torch 2.13.0, world size 5",
        *("ranks 0-1,4", "  step 1", "    a 1 B dp"),
        *("rank 2", "  no step", "    b 1 B dp"),
        *("rank 3", "  nothing"),
    ]


def test_a_form_for_cpus_is_marked() -> None:
    (one,) = operations("all_gather* 1 B dp")
    assert "# * torch asks for something else" in file_of([one._replace(is_cpu_form=True)])
    assert "# *" not in file_of([one])
    assert "# *" not in file_of(operations("all_gather 1 B dp"))


def test_nothing_has_changed() -> None:
    same = operations("a 1 B dp")
    assert changed([same, same], [same, same]) is None
    assert changed([same], [same], torch="2.12.0") is None


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (["a 4 B dp", "a 4 B dp", "b 8 B tp"], "1 more a of 4 B on dp, issued at train.py:2 in f"),
        (["a 4 B dp"], "1 less b of 8 B on tp"),
        (["a 4 B dp", "b 16 B tp"], "1 more b of 16 B on tp, issued at train.py:2 in f"),
        (["a 4 B dp", "b 8 B tp", "c tp"], "1 more c on tp, issued at train.py:3 in f"),
        (
            ["a 4 B dp", "b 8 B tp", "c* MAX 1.5 MiB bfloat16 ranks 0,1"],
            "1 more c* MAX of 1.5 MiB bfloat16 on ranks 0,1, issued at train.py:3 in f",
        ),
        (["a 4 B dp", "b 8 B tp", "c 8 B int8 TP"], "1 more c of 8 B int8 on TP, issued at"),
        (["b 8 B tp", "a 4 B dp"], "the operations are the same, in another order"),
    ],
)
def test_the_first_line_has_what_has_changed(now: list[str], words: str) -> None:
    before = operations("a 4 B dp", "b 8 B tp")
    found = changed([before] * 2, [operations(*now)] * 2)
    assert found is not None
    assert found.splitlines()[0].startswith(words)
    assert found.splitlines()[-1] == "--ddp-update-comms writes it anew"


def test_a_change_on_one_rank_is_counted_over_all() -> None:
    before = operations("a 4 B dp")
    found = changed([before] * 3, [before, before, operations("a 4 B dp", "a 4 B dp")])
    assert found is not None
    assert found.startswith("1 more a of 4 B on dp over all ranks, issued at train.py:2 in f\n")


def test_another_torch_is_named_first() -> None:
    found = changed([operations("a 4 B dp")], [operations("b 4 B dp")], torch="2.12.0")
    assert found is not None
    assert found.startswith("taken with torch 2.12.0, this is 2.13.0: 1 more b of 4 B on dp")
