"""The end of a run on one screen: what is broken, then a row for each group of guarantees."""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path

from ddp_conformance.framework.verdict import shown
from ddp_conformance.frontend.report import Fate, Judged, Kill, fate_of, guarantee_of, label
from ddp_conformance.frontend.table import Verdict, Word, render, summary

WIDTH = 100

SMALL = 20
"""Lines of a table that is shown beside the rows of the groups; a longer one is in the report."""

ROOM = 46
"""Columns for the systems or parts that keep a group."""

SPEC = Path(__file__).parents[1] / "SPEC.md"


@dataclass(frozen=True)
class ScreenRun:
    """The results of a session."""

    judged: Sequence[Judged] = ()
    kills: Sequence[Kill] = ()
    missing: int = 0
    """Checks and mutants that were selected and have no verdict."""
    others: Mapping[str, int] = field(default_factory=dict)
    """Numbers of other tests, by pytest's category of their end."""
    foreign_warnings: int = 0
    """Warnings of other libraries, which are in the report alone."""
    exit_code: int = 0
    """pytest's exit code, which may also have reasons of another plugin."""
    report: str = ""
    """The line with the path of the report, or with the option that writes one."""
    whole_table: bool = False
    """Show the table of all parts, however long it is."""


def screen(run: ScreenRun) -> list[tuple[str, bool | None]]:
    """The lines, each with whether it is good (True), bad (False) or neither (None)."""
    lines: list[tuple[str, bool | None]] = [(line, False) for line in _broken(run)]
    if lines:
        lines.append(("", None))
    lines += [(line, None) for line in (*_table(run), *_rows(run), *_counts(run))]
    return [*lines, last_line(run)]


def _broken(run: ScreenRun) -> Iterator[str]:
    """Each guarantee that is broken or undecided, in full, and each mutant that lived."""
    faults = [one for one in run.judged if one.word in (Word.FAILED, Word.UNKNOWN)]
    ordered = sorted(faults, key=lambda one: (one.guarantee, one.subject, one.world_size))
    for guarantee_id, found in groupby(ordered, key=lambda one: one.guarantee):
        yield from _wrapped(f"{label(guarantee_id)}: {guarantee_of(guarantee_id).statement}", "")
        for one in found:
            ranks = f"{one.world_size} rank{'s' * (one.world_size != 1)}"
            yield from _wrapped(f"{one.word}: {one.subject}, {ranks}", "  ")
            for text in shown(one.witness or (one.reason,)):
                yield from _wrapped(text, "    ")
    for kill in run.kills:
        if kill.word is Word.SURVIVED:
            text = f"SURVIVED: the mutant {kill.mutant} of {kill.guarantee} ({kill.defect})"
            yield from _wrapped(f"{text}, {kill.world_size} ranks", "")


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        # Paths and names stay whole, to be searched for and copied.
        break_long_words=False,
        break_on_hyphens=False,
    )


def _table(run: ScreenRun) -> Iterator[str]:
    """The verdict of each part on each guarantee, if there are few."""
    cells: list[Verdict] = [one.cell() for one in run.judged]
    rows = render(cells) if cells else []
    notes = " " * (len(rows[0]) + 2 if rows else 0)
    lines = [line for row in rows for line in textwrap.wrap(row, WIDTH, subsequent_indent=notes)]
    if lines and (run.whole_table or len(lines) <= SMALL):
        yield from (*lines, "")


# ---------------------------------------------------------------- a row for each group


def _rows(run: ScreenRun) -> Iterator[str]:
    guarantees = {one.guarantee for one in run.judged} | {one.guarantee for one in run.kills}
    rows = [("group", "guarantees", "ranks", "mutants", "parts that keep them")]
    for prefix in sorted({guarantee_id[:3] for guarantee_id in guarantees}):
        judged = [one for one in run.judged if one.guarantee.startswith(prefix)]
        kills = [one for one in run.kills if one.guarantee.startswith(prefix)]
        tried: list[Judged | Kill] = [one for one in judged if one.word is not Word.NOT_BOUND]
        tried += kills
        if not tried:
            continue
        sizes = sorted({one.world_size for one in tried})
        rows.append(
            (
                f"{prefix} {titles().get(prefix, '').partition(' and ')[0]}".rstrip(),
                numbers({int(one.guarantee[4:]) for one in tried}),
                " ".join(map(str, sizes)),
                _killed(kills),
                kept_by(judged),
            )
        )
    if len(rows) == 1:
        return
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    for row in zip(*columns, strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield cut("  ".join(cells).rstrip(), WIDTH)


@cache
def titles() -> dict[str, str]:
    """What each group is about, from the headings of the guarantees' text."""
    headings = re.findall(r"^## ([A-Z]{3}): (.+)$", SPEC.read_text(encoding="utf-8"), re.MULTILINE)
    return dict(headings)


def numbers(found: Iterable[int]) -> str:
    """Numbers of guarantees, those that follow each other as one: ``01-03 05``."""
    runs: list[list[int]] = []
    for number in sorted(found):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(
        f"{run[0]:02}" if len(run) == 1 else f"{run[0]:02}-{run[-1]:02}" for run in runs
    )


def _killed(kills: Sequence[Kill]) -> str:
    deaths = deaths_of(kills)
    return f"{sum(deaths.values())} of {len(deaths)}" if deaths else ""


def deaths_of(kills: Iterable[Kill]) -> dict[str, bool]:
    """Whether each mutant was killed, at all world sizes; none that could not be tried here."""
    deaths: dict[str, bool] = {}
    for kill in kills:
        if kill.word is not Word.SKIPPED:
            deaths[kill.mutant] = deaths.get(kill.mutant, True) and kill.word is Word.KILLED
    return deaths


def kept_by(judged: Sequence[Judged]) -> str:
    """The systems, or the parts of none, with how many of their parts keep all their guarantees."""
    parts: defaultdict[tuple[str, str], set[Fate]] = defaultdict(set)
    for (_, subject, system), fate in _fates(judged).items():
        parts[system, subject].add(fate)
    worst = {part: max(fates, key=[*Fate].index) for part, fates in parts.items()}
    systems = dict.fromkeys(system for system, _ in sorted(worst) if system)
    alone = {subject: fate for (system, subject), fate in worst.items() if not system}
    texts = [
        f"{system} {_count([fate for (own, _), fate in worst.items() if own == system])}"
        for system in systems
    ]
    if 0 < len(alone) <= 3 and {*alone.values()} == {Fate.KEPT}:
        texts += sorted(alone)
    elif alone:
        texts.append(_count(list(alone.values()), f" part{'s' * (len(alone) != 1)}"))
    text = ", ".join(texts)
    if len(text) <= ROOM or not systems:
        return cut(text, ROOM)
    return _count(list(worst.values()), f" parts of {len(systems)} systems")


def _count(fates: Sequence[Fate], of: str = "") -> str:
    """How many keep it; and how many break it as expected, which is no fault."""
    kept, expected = fates.count(Fate.KEPT), fates.count(Fate.EXPECTED)
    number = f"{kept}" if kept == len(fates) else f"{kept} of {len(fates)}"
    return f"{number}{of}{f' ({expected} not, as expected)' if expected else ''}"


def _fates(judged: Iterable[Judged]) -> dict[tuple[str, str, str], Fate]:
    """The verdict on each guarantee for each part that was checked, over all world sizes."""
    found: defaultdict[tuple[str, str, str], list[Word]] = defaultdict(list)
    for one in judged:
        found[one.guarantee, one.subject, one.system].append(one.word)
    fates = {pair: fate_of(words) for pair, words in found.items()}
    return {pair: fate for pair, fate in fates.items() if fate is not None}


# ---------------------------------------------------------------- the last lines


def _counts(run: ScreenRun) -> Iterator[str]:
    yield ""
    if run.judged:
        yield cut(f"checks: {summary([one.cell() for one in run.judged])}", WIDTH)
    untried = {kill.mutant for kill in run.kills} - deaths_of(run.kills).keys()
    if untried:
        yield f"mutants that could not be tried on this machine: {len(untried)}"
    if run.others:
        yield f"other tests: {', '.join(f'{n} {word}' for word, n in sorted(run.others.items()))}"
    if run.foreign_warnings:
        yield f"warnings of other libraries, which the report has: {run.foreign_warnings}"
    if run.report:
        yield run.report


def last_line(run: ScreenRun) -> tuple[str, bool]:
    """How many guarantees are kept by how many systems, and how many mutants are killed."""
    fates = _fates(run.judged)
    of_each: defaultdict[str, set[Fate]] = defaultdict(set)
    for (guarantee_id, _, _), fate in fates.items():
        of_each[guarantee_id].add(fate)
    broken = [name for name, found in of_each.items() if Fate.BROKEN in found]
    kept = [n for n, found in of_each.items() if Fate.KEPT in found and n not in broken]
    expected = len(of_each) - len(broken) - len(kept)
    texts = []
    if of_each:
        keepers = {pair for pair, fate in fates.items() if fate is Fate.KEPT}
        texts.append(f"{len(kept)} of {len(of_each)} guarantees are kept by {_keepers(keepers)}")
    if broken:
        texts.append(f"{len(broken)} broken or undecided")
    if expected:
        texts.append(f"{expected} broken as expected")
    deaths = deaths_of(run.kills)
    if deaths:
        texts.append(f"{sum(deaths.values())} of {len(deaths)} mutants are killed")
    failed = sum(run.others.get(category, 0) for category in ("failed", "error"))
    if failed:
        texts.append(f"{failed} other test{'s' * (failed != 1)} failed")
    if run.missing:
        texts.append(f"{run.missing} without a verdict")
    good = not broken and all(deaths.values()) and not failed and not run.missing
    if good and run.exit_code:
        texts.append(f"but pytest ends with exit code {run.exit_code}")
        good = False
    return "; ".join(texts) or "no guarantee was checked", good


def _keepers(kept: Iterable[tuple[str, str, str]]) -> str:
    systems = {system for _, _, system in kept if system}
    alone = {subject for _, subject, system in kept if not system}
    counted = [(len(systems), "system"), (len(alone), "part")]
    texts = [f"{number} {name}{'s' * (number != 1)}" for number, name in counted if number]
    return " and ".join(texts) or "no part"


def cut(text: str, width: int) -> str:
    """The text, or its beginning with an ellipsis."""
    return text if len(text) <= width else f"{text[: width - 3].rstrip()}..."
