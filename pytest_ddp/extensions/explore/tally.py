"""What a session has explored and what not, for its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_ddp.extensions.explore.options import TALLY


class Tally:
    """Counts of one session; an xdist worker sends its own to the main process."""

    def __init__(self) -> None:
        self.explored = 0
        self.not_explored: Counter[str] = Counter()
        """Tests, by the reason."""
        self.holds = 0
        self.expired = 0
        """Holds that a bound has ended."""
        self.undecided: list[str] = []
        """Failures that a limit of the test may have made, with their schedules."""

    def sent(self) -> list[Any]:
        """All of it, for the main process."""
        return [self.explored, dict(self.not_explored), self.holds, self.expired, self.undecided]

    def add(self, sent: list[Any]) -> None:
        """Add what a worker has sent."""
        explored, not_explored, holds, expired, undecided = sent
        self.explored += explored
        self.not_explored.update(not_explored)
        self.holds += holds
        self.expired += expired
        self.undecided += undecided

    def lines(self) -> Iterator[str]:
        """What the terminal shows."""
        parts = [f"{self.explored} {_tests(self.explored)} explored"] if self.explored else []
        for reason, count in sorted(self.not_explored.items()):
            parts.append(f"{count} not explored ({reason})")
        if self.expired:
            parts.append(f"{self.expired} of {self.holds} holds ended by a time limit")
        if parts:
            yield f"ddp explore: {', '.join(parts)}"
        yield from (f"ddp explore: undecided: {one}" for one in self.undecided)


def _tests(count: int) -> str:
    return "test" if count == 1 else "tests"


def tally_of(config: pytest.Config) -> Tally:
    """The session's."""
    found: Tally = config.stash.setdefault(TALLY, Tally())
    return found
