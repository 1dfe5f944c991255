"""The captured output of all ranks as the sections of one report."""

from __future__ import annotations

from collections import Counter

import pytest

from pytest_ddp.asked.options import Output
from pytest_ddp.evidence.outcome import RankOutcome, RunOutcome
from pytest_ddp.evidence.wording import ranks_text
from pytest_ddp.verdict.trouble import clean, lost_phase
from pytest_ddp.wire.protocol import Phase

_PHASES = tuple(Phase)


def sections_of(
    outcome: RunOutcome, phases: tuple[Phase, ...], output: Output, failing: frozenset[int]
) -> list[tuple[str, str]]:
    """Titles such as ``Captured stdout call [ranks 0-2]`` with their text, uncut.

    Args:
        outcome: with its ranks in order.
        phases: the phases of the merged report, in order: its own, and the call too if that has
            no report. As in pytest, output of earlier phases is repeated.
        failing: the ranks that ``Output.FAILED`` selects; empty selects every rank, since pytest
            prints the output of a passed test only on request (``-rP``).
    """
    found: dict[tuple[str, int, str], list[int]] = {}
    for rank in outcome.ranks:
        if not _chosen(rank.rank, output, failing):
            continue
        times: Counter[str] = Counter()
        for title, text in _rank_sections(rank, phases):
            found.setdefault((title, times[title], text), []).append(rank.rank)
            times[title] += 1
    # Sorting is stable: within a phase the order is that of the first rank.
    ordered = sorted(found.items(), key=lambda item: _phase_number(item[0][0]))
    return [(f"{title} [{ranks_text(ranks)}]", text) for (title, _, text), ranks in ordered]


def _chosen(rank: int, output: Output, failing: frozenset[int]) -> bool:
    if output is Output.RANK0:
        return rank == 0
    return output is Output.ALL or not failing or rank in failing


def _rank_sections(rank: RankOutcome, phases: tuple[Phase, ...]) -> list[tuple[str, str]]:
    report = _latest(rank, phases[-1])
    sections = [(str(title), clean(str(text))) for title, text in report.sections] if report else []
    left = lost_phase(rank) or Phase.TEARDOWN
    if left in phases:
        for name, text in (("stdout", rank.stdout), ("stderr", rank.stderr)):
            if text:
                sections.append((f"Captured {name} {left}", clean(text)))
    return sections


def _latest(rank: RankOutcome, phase: Phase) -> pytest.TestReport | None:
    """The rank's report of the phase, or of the one before for a rank that has none."""
    upto = _PHASES.index(phase) + 1
    for earlier in reversed(_PHASES[:upto]):
        if earlier in rank.reports:
            return rank.reports[earlier].report
    return None


def _phase_number(title: str) -> int:
    word = title.rpartition(" ")[2]
    return next((number for number, phase in enumerate(_PHASES) if phase == word), len(_PHASES))
