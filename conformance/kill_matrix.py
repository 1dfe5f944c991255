"""The kill matrix: which guarantees catch which mutant, as ``docs/kill-matrix.md`` shows it.

Made from the runs of ``test_mutants.py`` and ``test_launched.py`` at world size 2; written by
``make kill-matrix``. A run of some mutants alone (``-k``) renews their rows and leaves the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeAlias

from ddp_conformance.framework.mutants import Mutant, all_mutants
from ddp_conformance.framework.registry import Check, checks_for
from ddp_conformance.framework.subjects import Subject
from ddp_conformance.framework.verdict import GuaranteeError, UndecidedError

OPTION = "--ddp-kill-matrix"
"""Only with this option every check runs on every mutant, which takes longer than all else."""

FATES = "fates"
"""User property of a mutant's test: its fate under each guarantee that applies to it."""

Fates: TypeAlias = Mapping[str, str]

OWN, ALSO, ALIVE, UNDECIDED, NOT_APPLICABLE = "**K**", "k", "·", "?", ""

INTRODUCTION = f"""\
# Kill matrix

Every mutant is a small real component with one defect, and every check that applies to it has
looked at it on two ranks.

- {OWN}: its own guarantee catches it, which is what the test demands
- {ALSO}: another one does too
- {ALIVE}: it holds
- {UNDECIDED}: the component raised, so that nothing can be said
- empty: the guarantee does not apply, for want of a trait

Benign variants, right components that look like a mutant, are not shown: every check passes for
every benign variant. Mutants that need a GPU for each rank are left out. Made by `make
kill-matrix`; `conformance/test_mutants.py` fails when a mutant is missing here.
"""


def applicable(subject: Subject) -> list[Check]:
    """The checks that its traits let apply."""
    return [check for check in checks_for(subject) if check.obstacle(subject) is None]


def fates_of(mutant: Mutant) -> dict[str, str]:
    """The fate under each other guarantee; every rank calls it."""
    others = [check for check in applicable(mutant.subject) if check.id != mutant.guarantee]
    return {mutant.guarantee: OWN} | {check.id: _fate(check, mutant.subject) for check in others}


def _fate(check: Check, subject: Subject) -> str:
    try:
        check(subject)
    except GuaranteeError:
        return ALSO
    except UndecidedError:
        return UNDECIDED
    return ALIVE


def shown_mutants() -> list[Mutant]:
    """The mutants that a machine without GPUs can run: the page does not depend on where it is
    made.
    """
    return [mutant for mutant in all_mutants() if "gpu" not in mutant.subject.traits]


def missing(fates: Mapping[str, Fates]) -> list[str]:
    """Mutants without a row."""
    return [mutant.subject.name for mutant in shown_mutants() if mutant.subject.name not in fates]


def render(fates: Mapping[str, Fates]) -> str:
    """The page: a table for each group of guarantees, of the mutants with known fates."""
    lines = [INTRODUCTION.rstrip()]
    for group, mutants in _by_group(fates):
        lines += ["", f"## {group}", "", *_table(mutants, fates)]
    return "\n".join(lines) + "\n"


def _by_group(fates: Mapping[str, Fates]) -> Iterator[tuple[str, list[Mutant]]]:
    known = [mutant for mutant in shown_mutants() if mutant.subject.name in fates]
    ordered = sorted(known, key=lambda mutant: mutant.guarantee)
    for group, mutants in groupby(ordered, key=lambda mutant: mutant.guarantee[:3]):
        yield group, list(mutants)


def _table(mutants: Sequence[Mutant], fates: Mapping[str, Fates]) -> Iterator[str]:
    columns = sorted({one for mutant in mutants for one in fates[mutant.subject.name]})
    yield _row(["mutant", *columns])
    yield _row(["---"] * (len(columns) + 1))
    for mutant in mutants:
        own = fates[mutant.subject.name]
        yield _row([title(mutant), *(own.get(column, NOT_APPLICABLE) for column in columns)])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def title(mutant: Mutant) -> str:
    """The first cell of its row."""
    return f"`{mutant.subject.name}`: {mutant.defect}"


def read(page: str) -> dict[str, dict[str, str]]:
    """Read a page: the fates in each row, by its first cell."""
    found: dict[str, dict[str, str]] = {}
    columns: list[str] = []
    for line in page.splitlines():
        first, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if first == "mutant":
            columns = cells
        elif line.startswith("| `"):
            pairs = zip(columns, cells, strict=True)
            found[first] = {column: cell for column, cell in pairs if cell != NOT_APPLICABLE}
    return found


def updated(page: str, fates: Mapping[str, Fates]) -> dict[str, Fates]:
    """The rows of a page by mutant, updated with those of this run."""
    rows = read(page)
    known = {m.subject.name: rows[title(m)] for m in shown_mutants() if title(m) in rows}
    return {**known, **fates}
