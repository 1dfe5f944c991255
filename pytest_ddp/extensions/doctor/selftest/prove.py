"""Runs the parts of the self-test and compares their verdicts with the expected ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddp.extensions.doctor.selftest import inner_session, recorder
from pytest_ddp.extensions.doctor.selftest.cases import SelftestCase, expected_of
from pytest_ddp.extensions.doctor.selftest.judge import Row, exit_code, judge
from pytest_ddp.system.stdlib import json

_LAST = 4000
"""Characters of pytest's output that are kept if its session is not as expected."""


@dataclass(frozen=True, slots=True)
class SelftestResult:
    """The result of one part of the selftest."""

    part: SelftestCase
    obstacle: str
    """Why the part did not run; empty if it did."""
    rows: tuple[Row, ...] = ()
    seconds: float = 0.0
    problem: str = ""
    """What is wrong with the session as a whole."""
    output: str = ""
    """The end of what pytest printed, if something is wrong."""

    @property
    def wrong(self) -> tuple[Row, ...]:
        """Tests that are not as expected."""
        return tuple(row for row in self.rows if row.problem)

    @property
    def is_green(self) -> bool:
        """Whether the part ran, and all of its tests were as expected."""
        return not self.obstacle and bool(self.rows) and not self.wrong and not self.problem


def prove(
    chosen: Iterable[SelftestCase], gpus: int, tell: Callable[[SelftestResult], None]
) -> list[SelftestResult]:
    """Run the chosen parts that can run; call ``tell`` with each result at once."""
    results = []
    for part in chosen:
        obstacle = part.obstacle(gpus)
        result = SelftestResult(part, obstacle) if obstacle else _run(part)
        tell(result)
        results.append(result)
    return results


def _run(case: SelftestCase) -> SelftestResult:
    expected = expected_of(case)
    with inner_session.folder_with("conftest.py", *case.suites) as folder:
        record, presence = folder / "record", folder / "presence"
        ended = inner_session.run(
            folder,
            *("-p", recorder.__name__, "-v", f"--ddp-backend={case.backend}"),
            *(f"--ddp-world-size={case.size}", *case.arguments),
            environment={recorder.RECORD: str(record), recorder.PRESENCE: str(presence)},
            limit=case.limit,
        )
        rows = judge(expected, _lines(record), _lines(presence), case.size)
    problem = ""
    if ended.code is None:
        problem = f"pytest did not end within {case.limit:.0f} s, and was killed"
    elif ended.code != (code := exit_code(expected)):
        problem = f"pytest ended with code {ended.code}, and had to with {code}"
    wrong = problem or any(row.problem for row in rows)
    output = ended.output[-_LAST:] if wrong else ""
    return SelftestResult(case, "", tuple(rows), ended.seconds, problem, output)


def _lines(path: Path) -> list[dict[str, Any]]:
    """All complete records; the last line of a writer that was killed may be cut off."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return found
