"""Programs with known races: ``python -m fidelity.races --truth`` or ``--table`` (``--only NAME``).

``--truth`` proves without exploring that each race fails under its delays, and that each legal
program passes under sleeps at all of its places. ``--table`` compares how races are found, in
equal wall time for each race, and shows whether a legal program is accused, or a test of torch's
own changes its verdict; ``--write`` puts it into docs/races.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fidelity.races.adopted import Adopted, adopted
from fidelity.races.exploring import Exploration
from fidelity.races.records import Program, programs
from fidelity.races.table import Effort, Row, accused, explorations, line, page, row
from fidelity.races.truth import truth

DOCUMENT = Path(__file__).parents[2] / "docs" / "races.md"
BEGIN, END = "<!-- python -m fidelity.races --table --write -->\n", "<!-- end of the table -->\n"


def main(arguments: Sequence[str]) -> int:
    """Return 0 if all is as it should be."""
    parser = argparse.ArgumentParser(prog="python -m fidelity.races", description=__doc__)
    parser.add_argument("--truth", action="store_true", help="prove the truth of programs")
    parser.add_argument("--table", action="store_true", help="explore, and compare")
    parser.add_argument("--write", action="store_true", help="put the table into docs/races.md")
    parser.add_argument("--only", default="", metavar="NAME", help="programs with this in the name")
    parser.add_argument("--kind", choices=("races", "legal"), help="these programs alone")
    parser.add_argument("--sessions", type=int, default=3, help="that explore a program")
    parser.add_argument("--replays", type=int, default=5, help="of each find")
    given = parser.parse_args(arguments)
    chosen = [
        program
        for program in programs(given.only)
        if given.kind is None or program.is_race == (given.kind == "races")
    ]
    mistakes = 0
    if given.truth:
        mistakes += sum(not _is_proved(program) for program in chosen)
    if given.table:
        torchs = None if given.only or given.kind else adopted()
        effort = Effort(given.sessions, given.replays)
        mistakes += _compared(chosen, effort, torchs, write_it=given.write)
    return 1 if mistakes else 0


def _is_proved(program: Program) -> bool:
    """Prove a program, and print what came of it."""
    found = truth(program)
    print(found, flush=True)
    for kind, run in found.mistakes():
        print(f"{kind}: {run.outcome}: {run.name}\n{run.text}", file=sys.stderr, flush=True)
    return found.is_proved


def _compared(
    chosen: Sequence[Program], effort: Effort, torchs: Adopted | None, *, write_it: bool
) -> int:
    """Print the table, and the texts of what was not judged as it should be; how many were not."""
    mistakes = 0 if torchs is None else len(torchs.changed)
    rows: list[Row] = []
    for race in (program for program in chosen if program.is_race):
        rows.append(row(race, effort))
        print(line(rows[-1]), file=sys.stderr, flush=True)
        if not rows[-1].is_right:
            mistakes += 1
            _tell(race.name, rows[-1].explored)
    legal = [program for program in chosen if not program.is_race]
    explored = explorations(legal, effort) if legal else []
    if accused(explored):
        mistakes += len(accused(explored))
        _tell(", ".join(accused(explored)), explored)
    made = page(rows, explored, torchs)
    print(made)
    if write_it:
        write(made)
    return mistakes


def _tell(names: str, explored: Sequence[Exploration]) -> None:
    texts = [one.text for one in explored]
    print(f"not as it should be: {names}", *texts, sep="\n", file=sys.stderr, flush=True)


def write(made: str) -> None:
    """Put the tables in the place of older ones."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    DOCUMENT.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
