"""What the benchmarks make of their measurements."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import explored, machines, verdicts
from benchmarks.__main__ import DOCUMENT, PARTS, with_numbers
from benchmarks.measure import SUITES, Cost, run
from benchmarks.overhead import Pairs, table
from benchmarks.sessions import OURS, PLAIN, _tables
from benchmarks.verdicts import Verdict, middle


@pytest.mark.exhaustive  # some ten minutes in all
@pytest.mark.parametrize("part", PARTS)
def test_every_part_measures(part: str) -> None:
    measured = subprocess.run(
        [sys.executable, "-m", "benchmarks", part, "--quick"],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert measured.returncode == 0, f"{measured.stdout}\n{measured.stderr}"


def test_the_overhead_is_the_median_of_differences_between_neighbours() -> None:
    slow, fast = [(13e-6, 10e-6)] * 2, [(8e-6, 5e-6)] * 3
    calls = Pairs("call", True, tuple(slow + fast))
    steps = Pairs("step", True, ((12e-3, 10e-3),))
    off = [Pairs("call", False, ((5e-6, 4e-6),)), Pairs("step", False, ((10e-3, 10e-3),))]
    rows = list(table([calls, steps, *off]))
    assert rows[2].endswith("| 5.0 µs | 8.0 µs | 3.0 µs | 1.600 |")
    assert rows[3].endswith("| 4.0 µs | 5.0 µs | 1.0 µs | 1.250 |")
    assert rows[4].endswith("| 10.00 ms | 12.00 ms | 2.00 ms | 1.200 |")


def test_what_node_0_pays_is_reported_for_a_rank() -> None:
    alone = machines.Spent(1, 4, 0.002, 0.0, 0.0, 0.0)
    spread = machines.Spent(2, 4, 0.002, 0.001, 2.25, 1500.0)
    rows = list(machines.table([alone, spread]))[2:]
    assert rows == [
        "| one machine, 4 ranks | 2.0 ms | 0.0 ms | 0.50 ms | - | - |",
        "| 2 machines, 4 ranks | 2.0 ms | 1.0 ms | 0.75 ms | 2.2 | 1500 |",
    ]


def test_a_held_run_is_counted_without_its_hold() -> None:
    held = {"hold": 0.5, "late": [0.05, None], "how": ["OVER", "EXPIRED"]}
    runs = [
        {"kind": "first ordinary", "seconds": 9.0},
        *({"kind": "ordinary", "seconds": seconds} for seconds in (0.1, 0.2, 0.9)),
        *({"kind": "recorded", "seconds": seconds} for seconds in (0.2, 0.3)),
        {"kind": "held", "seconds": 0.8, **held},
    ]
    rows = list(explored.table(runs))
    assert rows[2:5] == [
        "| without recording | 3 | 200 ms | 1.00 |",
        "| recorded | 2 | 250 ms | 1.25 |",
        "| with a hold, less its time | 1 | 300 ms | 1.50 |",
    ]
    assert rows[-1] == (
        "Of 2 holds a bound ended 1. The others ended 50 ms after the last event of the other "
        "threads (median), at most 50 ms."
    )


def test_one_run_that_passed_is_not_outvoted() -> None:
    failed = [Verdict(True, seconds) for seconds in (0.4, 0.5, 0.9)]
    assert middle(failed) == failed[1]
    assert middle([*failed, Verdict(False, 0.1)]) == Verdict(False, 0.1)


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (Verdict(True, 0.512), "0.51 s"),
        (Verdict(False, 3.0), "passed"),
        (Verdict(True, float("nan")), "failed at the start"),
        (Verdict(True, float("inf")), "none"),
    ],
)
def test_words(verdict: Verdict, words: str) -> None:
    assert str(verdict) == words


def test_the_cases_are_those_of_the_suites() -> None:
    tree = ast.parse((SUITES / "verdict_cases.py").read_text())
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {name for name in functions if not name.startswith("_")} == set(verdicts.CASES)
    for case in verdicts.CASES:
        chosen = [name for name in verdicts.CASES if case in name]
        assert chosen == [case], "pytest -k must choose one"


def test_every_part_has_a_place_in_the_page() -> None:
    page = DOCUMENT.read_text()
    for part in PARTS:
        page = with_numbers(page, part, f"OLD {part}")
        page = with_numbers(page, part, f"new {part}")
    assert all(page.count(f"new {part}\n") == 1 for part in PARTS)
    assert "OLD" not in page
    assert page.count("<!--") == 2 * len(PARTS)


def test_a_page_without_a_place() -> None:
    with pytest.raises(ValueError, match="no place for the numbers of costs"):
        with_numbers("# Benchmarks\n", "costs", "1 ms")


def test_the_one_way_to_run_pytest() -> None:
    irreversible = run("without_torch", environment={"BENCHMARK_COUNT": "1"})
    assert irreversible.cpu > 0
    assert irreversible.wall > 0
    with pytest.raises(RuntimeError, match="KeyError: 'BENCHMARK_COUNT'"):
        run("without_torch")


def test_tables_of_costs() -> None:
    ours = [Cost(start=2.0, test=0.01, cpu=0.02), Cost(start=2.5, test=0.02, cpu=0.04)]
    nan = float("nan")
    other = [Cost(start=1.0, test=1.5, cpu=3.0), Cost(nan, nan, nan)]
    lines = list(_tables({OURS.name: ours, "other": other}, ours[0], (2, 4)))
    assert lines[0] == "| one more test | 2 ranks | 4 ranks |"
    assert f"| {OURS.name} | 10.0 ms | 20.0 ms |" in lines
    assert "| other | 1500.0 ms, x 150 | failed |" in lines
    assert "| other | 1.00 s, x 0.50 | failed |" in lines
    assert f"| {PLAIN.name} | 2.00 s | 2.00 s, x 0.80 |" in lines
