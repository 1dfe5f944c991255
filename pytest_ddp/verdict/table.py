"""The table of ranks: a row for each, with its state, phase, collective and place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_ddp.evidence.outcome import RankLine
from pytest_ddp.verdict.diagnosis import RankDiagnosis
from pytest_ddp.verdict.entries import WIDTH

_GAP = "  "


def rows_of(ranks: Sequence[RankDiagnosis | RankLine], width: int = WIDTH) -> Iterator[str]:
    """An empty line, then the rows: one line for each rank, if that fits the width.

    Else the places go below, each on a line of its own; and if that is still too wide, the
    collectives too. A column that is empty for all ranks is left out.
    """
    yield ""
    cells = [(f"rank {r.rank}", r.state, r.phase, r.collective, r.place) for r in ranks]
    for inline in (5, 4, 3):
        lines = list(_laid_out(cells, inline))
        if all(len(line) <= width for line in lines):
            break
    yield from lines


def _laid_out(cells: Sequence[tuple[str, ...]], inline: int) -> Iterator[str]:
    """The rows with that many cells on their first line, and the others below."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    columns = [number for number in range(inline) if widths[number]]
    # Below the last cell of the first line, to which they belong.
    indent = " " * sum(widths[number] + len(_GAP) for number in columns[:-1])
    for row in cells:
        yield _GAP.join(row[number].ljust(widths[number]) for number in columns).rstrip()
        yield from (indent + cell for cell in row[inline:] if cell)
