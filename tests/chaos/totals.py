"""The numbers over many suites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.chaos.judge import Finding
from tests.chaos.plan import Plan
from tests.chaos.play import Played

ALWAYS = ("false green", "false red", "survivor", "file left")
"""Findings whose number is shown also where there was none."""


@dataclass
class Totals:
    """What has been played, and what was found."""

    options: str = ""
    """The options that a suite's seed needs beside it."""
    suites: int = 0
    kills: int = 0
    seconds: float = 0.0
    verdicts: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    seeds: dict[int, list[str]] = field(default_factory=dict)

    def add(self, plan: Plan, played: Played, findings: Sequence[Finding]) -> None:
        self.suites += 1
        self.kills += len(played.killed)
        self.seconds += played.seconds
        if played.finished is not None:
            self.verdicts.update(result.verdict for result in played.finished.results.values())
        self.findings.update(finding.what for finding in findings)
        if findings:
            self.seeds[plan.seed] = sorted({finding.what for finding in findings})

    def __str__(self) -> str:
        verdicts = ", ".join(f"{count} {what}" for what, count in self.verdicts.most_common())
        counts = dict.fromkeys(ALWAYS, 0) | dict(self.findings)
        lines = [
            f"{self.suites} suites in {self.seconds:.0f} s, {self.kills} kills from outside",
            f"verdicts: {sum(self.verdicts.values())}: {verdicts}",
            "; ".join(f"{what}: {count}" for what, count in counts.items()),
            *(
                f"  --seed {seed} --once{self.options}: {', '.join(what)}"
                for seed, what in self.seeds.items()
            ),
        ]
        return "\n".join(lines)
