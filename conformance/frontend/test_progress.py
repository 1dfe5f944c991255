"""The line of progress: what it says, and when it is due."""

from __future__ import annotations

import pytest
from ddp_conformance.frontend.progress import Progress, topic


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({"guarantee": "SMP-01", "subject": "mine", "system": "resnet"}, "SMP resnet"),
        ({"guarantee": "SMP-01", "subject": "mine", "system": ""}, "SMP mine"),
        ({"guarantee": "MET-01", "mutant": "unweighted"}, "MET mutants"),
        (None, "metrics/judge"),
    ],
)
def test_a_test_is_about_a_group_and_a_system(about: dict[str, str] | None, expected: str) -> None:
    assert topic("conformance/metrics/test_judge.py::test_it[1]", about) == expected


def test_the_line_counts_tests_and_names_what_runs() -> None:
    progress = Progress(1.0)
    progress.total = 3
    for worker, subject in (("gw0", "SMP resnet"), ("gw1", "MOD training"), ("gw2", "SMP resnet")):
        progress.begin(worker, subject)
    progress.end("a", failed=False)
    assert progress.line(100) == "1 of 3 tests done: SMP resnet, MOD training"
    progress.end("b", failed=True)
    progress.end("b", failed=True)  # its teardown too
    assert progress.line(100) == "2 of 3 tests done, 1 failed: SMP resnet, MOD training"
    assert progress.line(35) == "2 of 3 tests done, 1 failed: SMP..."


def test_a_line_is_due_after_the_first_seconds_and_then_at_intervals() -> None:
    now = 0.0
    progress = Progress(20.0, lambda: now, first=-1.0)
    assert not progress.due(), "no test has begun"
    progress = Progress(20.0, lambda: now, first=2.0)
    progress.begin("", "SMP mine")
    due = []
    for now in (0.0, 1.9, 2.0, 3.0, 21.9, 22.5, 30.0, 43.0):  # noqa: B007 - the clock reads it
        due.append(progress.due())
    assert due == [False, False, True, False, False, True, False, True]
