"""The results of ``--prove`` as Markdown and as JSON, to attach to an issue."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_ddp.extensions.doctor import libraries
from pytest_ddp.extensions.doctor.findings import CheckResult, as_json, as_text, stops
from pytest_ddp.extensions.doctor.selftest.prove import SelftestResult
from pytest_ddp.system.stdlib import json, shutil, subprocess

NAME = "pytest-ddp-report"
_LIMIT = 60.0
"""Seconds for ``nvidia-smi``."""


@dataclasses.dataclass(frozen=True)
class Report:
    """Findings and results of one run of the doctor."""

    findings: Sequence[CheckResult]
    results: Sequence[SelftestResult]
    unasked: Sequence[str]
    """Parts that the command line did not select."""

    @property
    def is_green(self) -> bool:
        """Whether at least one part ran, and nothing is wrong."""
        ran = [result for result in self.results if not result.obstacle]
        return bool(ran) and all(result.is_green for result in ran) and not stops(self.findings)

    def summary(self) -> str:
        """One line with the number of parts that ran: green means little if few ran."""
        ran = sum(not result.obstacle for result in self.results)
        count = len(self.results) + len(self.unasked)
        return f"{ran} of {count} parts ran, {'all' if self.is_green else 'NOT all'} as expected"

    def write(self, directory: Path) -> Path:
        """Write both files; return the path of the Markdown.

        Raises:
            OSError: the files cannot be written there.
        """
        directory.mkdir(parents=True, exist_ok=True)
        markdown = directory / f"{NAME}.md"
        markdown.write_text(self._markdown(), encoding="utf-8")
        content = json.dumps(self._json(), indent=2)
        markdown.with_suffix(".json").write_text(f"{content}\n", encoding="utf-8")
        return markdown

    def _json(self) -> dict[str, Any]:
        return {
            "format": 1,
            "green": self.is_green,
            "versions": libraries.versions(),
            "topology": topology(),
            "findings": as_json(self.findings),
            "results": [dataclasses.asdict(result) for result in self.results],
            "unasked": list(self.unasked),
        }

    def _markdown(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"# pytest-ddp: {self.summary()}\n"
        yield _table("", "version")
        for name, version in libraries.versions().items():
            yield _cells(name, version)
        yield f"\n## This machine\n\n{_fenced(as_text(self.findings))}"
        if links := topology():
            yield f"\n{_fenced(links)}"
        yield "\n## What ran\n"
        yield _table("part", "backend", "ranks", "as expected", "s", "")
        for result in self.results:
            if not result.obstacle:
                yield _row(result)
        yield "\n## What did not run\n"
        yield _table("part", "about", "why")
        for result in self.results:
            if result.obstacle:
                yield _cells(result.part.name, result.part.about, result.obstacle)
        for name in self.unasked:
            yield _cells(name, "", "not selected")
        for result in self.results:
            yield from _details(result)


def _row(result: SelftestResult) -> str:
    part, count = result.part, len(result.rows)
    score = f"{count - len(result.wrong)} of {count}"
    about = result.problem or part.about
    return _cells(part.name, part.backend, part.size, score, f"{result.seconds:.1f}", about)


def _details(result: SelftestResult) -> Iterator[str]:
    if result.obstacle:
        return
    yield f"\n## {result.part.name}\n"
    yield _table("test", "verdict", "s", "")
    for row in result.rows:
        yield _cells(row.test, row.got, f"{row.seconds:.2f}", row.problem or "as expected")
    for row in result.wrong:
        if row.text:
            yield f"\n{row.test}:\n\n{_fenced(row.text)}"
    if result.output:
        yield f"\nThe end of what pytest printed:\n\n{_fenced(result.output)}"


def _table(*titles: str) -> str:
    return f"{_cells(*titles)}\n{_cells(*('---' for _ in titles))}"


def _cells(*texts: object) -> str:
    return f"| {' | '.join(str(text).replace('|', '/') for text in texts)} |"


def _fenced(text: str) -> str:
    # The output of tests may contain code fences.
    return f"~~~~~~text\n{text.rstrip()}\n~~~~~~"


_STYLE = re.compile(r"\x1b\[\d*m")
"""What underlines the head of nvidia-smi's table, even if its output is no terminal."""


def topology() -> str:
    """How GPUs are connected, from ``nvidia-smi topo``; empty if it is missing or fails."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return ""
    try:
        run = subprocess.run(
            [command, "topo", "-m"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return _STYLE.sub("", run.stdout).strip() if run.returncode == 0 else ""
