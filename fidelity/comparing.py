"""Compare the verdicts of two runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Verdicts: TypeAlias = Mapping[str, str]
"""Each test's verdict by its node id."""
_NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why tests of a package are known to have another verdict on ranks."""

    package: str
    pattern: str
    """Regular expression that a whole node id matches."""
    text: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A test with two verdicts."""

    nodeid: str
    plain: str
    on_ranks: str
    reason: str | None

    def __str__(self) -> str:
        return f"{self.nodeid}: {self.plain}; on ranks: {self.on_ranks} ({self.reason or '???'})"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs of one suite."""

    tests: int
    differences: tuple[Difference, ...]

    @property
    def equal(self) -> int:
        """Number of tests with one verdict."""
        return self.tests - len(self.differences)

    @property
    def unexplained(self) -> tuple[Difference, ...]:
        """The differences without a reason."""
        return tuple(found for found in self.differences if found.reason is None)

    @property
    def faithful(self) -> bool:
        """No test differs without a reason; and there were tests."""
        return self.tests > 0 and not self.unexplained


def compare(
    package: str, plain: Verdicts, on_ranks: Verdicts, reasons: Sequence[Reason]
) -> Comparison:
    """Find the tests whose verdicts differ; one that ran only once is one of them."""
    names = sorted(plain.keys() | on_ranks.keys())
    pairs = ((name, plain.get(name, _NOT_RUN), on_ranks.get(name, _NOT_RUN)) for name in names)
    differences = tuple(
        Difference(name, before, after, _reason(package, name, reasons))
        for name, before, after in pairs
        if before != after
    )
    return Comparison(len(names), differences)


def _reason(package: str, nodeid: str, reasons: Sequence[Reason]) -> str | None:
    for reason in reasons:
        if reason.package == package and re.fullmatch(reason.pattern, nodeid):
            return reason.text
    return None
