"""Run each habit under each way, and print a table: ``python -m fidelity.habits [--write]``.

``--write`` puts it into docs/habits.md, ``--seen DIR`` keeps what each run printed, ``--suites``
says which ways. Takes plugins from build/zoo, which ``make zoo`` makes. Limits are for hangs alone:
a busy machine makes it slow, and nothing else.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

from fidelity.habits.ways import WAYS, Seen, Way, run

DOCUMENT = Path(__file__).parents[2] / "docs" / "habits.md"
_BEGIN, _END = "<!-- python -m fidelity.habits --write -->\n", "<!-- end of the table -->\n"

HANGS = 120
"""Seconds of pytest-timeout for a test that hangs; others may need many to import torch."""


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of one way."""

    whole: Seen
    stopped: Seen
    again: Seen
    rerun: Seen
    workers: Seen
    timed: Seen
    strict: Seen
    debugged: Seen


def _runs(way: Way, folder: Path) -> Runs:
    covered = ("--cov=work", "--cov-report=json")
    whole = (
        *covered,
        "--junitxml=out.xml",
        "-k",
        "not (first or second or flaky or hangs or last)",
    )
    some = ("-k", "test_first or test_last")
    run(way, folder / "cache", *some)
    for mark in (folder / "cache" / "marks").iterdir():
        mark.unlink()
    none = ("-p", "no:cacheprovider")
    return Runs(
        whole=run(way, folder / "whole", *none, *whole),
        stopped=run(way, folder / "stopped", *none, "-x", "-k", "test_first or test_second"),
        again=run(way, folder / "cache", *some, "--lf"),
        rerun=run(way, folder / "rerun", *none, "--reruns=1", "-k", "flaky"),
        workers=run(way, folder / "workers", *none, "-n2", "-k", "reduce"),
        timed=run(
            way, folder / "timed", *none, f"--timeout={HANGS}", "-k", "test_hangs or test_last"
        ),
        strict=run(way, folder / "strict", *none, "-Werror", "-k", "warns"),
        debugged=run(
            *(way, folder / "debugged", *none, "--pdb", "-k", "fails_on_one"),
            keys="p 'value', value\nc\nc\n",
        ),
    )


def _one_verdict(runs: Runs) -> bool:
    return [call["outcome"] for call in runs.whole.calls("fails_on_one")] == ["failed"]


def _in_failure(runs: Runs, part: str, words: str) -> bool:
    calls = runs.whole.calls("fails_on_one")
    return any(words in call[part] for call in calls)


def _junit(runs: Runs) -> bool:
    """One process writes the file, and it says what failed on rank 1 and what was recorded."""
    if runs.whole.output.count("generated xml file") != 1:
        return False
    cases = list(ElementTree.parse(runs.whole.folder / "out.xml").getroot().iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None]
    properties = [found.get("value") for case in cases for found in case.iter("property")]
    return any("fails_on_one" in case.get("name", "") for case in failed) and "42" in properties


def _covered(runs: Runs) -> bool:
    file = runs.whole.folder / "coverage.json"
    found = json.loads(file.read_text())["files"] if file.exists() else {}
    return any({10, 11, 12} <= set(data["executed_lines"]) for data in found.values())


def _subtests(runs: Runs) -> bool:
    failed = [r for r in runs.whole.records if r.get("subtest") and r["outcome"] == "failed"]
    return len(failed) == 1


def _skips(runs: Runs) -> bool:
    calls = runs.whole.calls("skips")
    return bool(calls) and all(call["outcome"] == "skipped" for call in calls)


def _warned(runs: Runs) -> bool:
    return any("from the work" in record["text"] for record in runs.whole.records)


def _stops(runs: Runs) -> bool:
    return bool(runs.stopped.marks("first")) and not runs.stopped.marks("second")


def _last_failed(runs: Runs) -> bool:
    again = runs.again
    return again.marks("first") == 2 and not again.calls("last")


def _workers(runs: Runs) -> bool:
    return runs.workers.code == 0 and len(runs.workers.calls("reduce")) == 4


def _timeout(runs: Runs) -> bool:
    calls = runs.timed.calls("hangs")
    return bool(calls) and not runs.timed.passed("hangs") and runs.timed.passed("last")


def _strict(runs: Runs) -> bool:
    return bool(runs.strict.calls("warns")) and not runs.strict.passed("warns")


HABITS: dict[str, Callable[[Runs], bool]] = {
    "a test that fails on one rank is one failed test": _one_verdict,
    "`assert` shows both values": lambda runs: _in_failure(runs, "text", "assert 42 == 41"),
    "output of the rank stands with its failure": lambda runs: _in_failure(
        runs, "output", "said by rank 1"
    ),
    "`pytest.skip` in the body": _skips,
    "parametrized tests": lambda runs: runs.whole.passed("reduce"),
    "`monkeypatch` in the body": lambda runs: runs.whole.passed("monkeypatch"),
    "`capsys`": lambda runs: runs.whole.passed("capsys"),
    "`capfd`": lambda runs: runs.whole.passed("capfd"),
    "`caplog`": lambda runs: runs.whole.passed("caplog"),
    "`tmp_path` is one folder for all ranks": lambda runs: runs.whole.passed("tmp_path"),
    "a session fixture lives on in the ranks": lambda runs: runs.whole.passed("session"),
    "a failing subtest is counted, once": _subtests,
    "warnings are in the summary": _warned,
    "`-W error`": _strict,
    "`--junitxml`, with `record_property`": _junit,
    "`--cov`": _covered,
    "`-x` stops all ranks": _stops,
    "`--lf` runs what failed, on all ranks": _last_failed,
    "`--reruns` (pytest-rerunfailures)": lambda runs: runs.rerun.code == 0,
    "`-n 2` (pytest-xdist)": _workers,
    "`--timeout`, and the next test runs": _timeout,
    "`--pdb` stops where the rank failed": lambda runs: "('value', 42)" in runs.debugged.output,
}


def main(arguments: Sequence[str]) -> None:
    """Run all and print the table."""
    parser = argparse.ArgumentParser(prog="python -m fidelity.habits", description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--seen", type=Path)
    parser.add_argument("--suites", nargs="+", choices=[way.suite for way in WAYS], default=[])
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        ways = [way for way in WAYS if way.suite in given.suites or not given.suites]
        columns = [_column(way, Path(directory) / way.suite, given.seen) for way in ways]
    made = table(ways, columns)
    print(made)
    if given.write:
        write(made)


def table(ways: Sequence[Way], columns: Sequence[dict[str, str]]) -> str:
    """A table of a column for each way."""
    names = [way.name for way in ways]
    rows = [f"| habit | {' | '.join(names)} |", f"|---{'|---' * len(names)}|"]
    rows += [f"| {habit} | {' | '.join(c[habit] for c in columns)} |" for habit in HABITS]
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "pytest"))
    return "\n".join([f"{datetime.date.today()}, {versions}, two ranks.", "", *rows, ""])


def write(made: str) -> None:
    """Put the table in the place of an older one."""
    before, _, rest = DOCUMENT.read_text().partition(_BEGIN)
    after = rest.partition(_END)[2]
    DOCUMENT.write_text(f"{before}{_BEGIN}\n{made}\n{_END}{after}")


def _column(way: Way, folder: Path, seen: Path | None) -> dict[str, str]:
    for name in ("cache", "whole", "stopped", "rerun", "workers", "timed", "strict", "debugged"):
        (folder / name).mkdir(parents=True)
    runs = _runs(way, folder)
    if seen is not None:
        for name in Runs.__slots__:
            one: Seen = getattr(runs, name)
            target = seen / f"{way.suite}-{name}.txt"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(f"{one.code} after {one.seconds:.0f} s\n{one.output}")
    return {habit: "yes" if works(runs) else "no" for habit, works in HABITS.items()}


if __name__ == "__main__":
    main(sys.argv[1:])
