"""What a session has explored and what not, for its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_ddp.extensions.explore import words
from pytest_ddp.extensions.explore.options import TALLY


class Tally:
    """Counts of one session; an xdist worker sends its own to the main process."""

    def __init__(self) -> None:
        self.explored = 0
        self.not_explored: Counter[str] = Counter()
        """Tests that were not explored, by the reason."""
        self.holds = 0
        self.expired = 0
        """Holds that a bound has ended."""
        self.undecided: list[str] = []
        """Failures that a limit of the test may have made, with their schedules."""

    def sent(self) -> list[Any]:
        """All counts and failures, as an xdist worker sends them to the main process."""
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
        if self.explored or self.expired:
            yield f"ddp: {words.session(self.explored, self.holds, self.expired)}"
        if reasons := [*self.not_explored.elements()]:
            yield f"ddp: {words.not_explored(reasons)}"
        yield from (f"ddp: {one}" for one in self.undecided)


def tally_of(config: pytest.Config) -> Tally:
    """The session's."""
    found: Tally = config.stash.setdefault(TALLY, Tally())
    return found
