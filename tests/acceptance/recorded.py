"""Inner runs that write down which process was which rank in each test."""

from __future__ import annotations

import glob
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.acceptance.suite import LOADFILE, Finished, Suite

CONFTEST = """
    import json
    import os
    from pathlib import Path

    import pytest

    @pytest.fixture(autouse=True)
    def recorded(request, ddp):
        file = Path(os.environ["PIDS"], f"{request.node.name}.{ddp.rank}")
        file.write_text(str(os.getpid()))
"""


def source(preamble: str, template: str, cases: Mapping[str, tuple[object, ...]]) -> str:
    """A module with the template's tests for each case; its fields are named in the template."""
    tests = (
        textwrap.dedent(template).format(name=name, deed=case[0], holds=case[-2])
        for name, case in cases.items()
    )
    return textwrap.dedent(preamble) + "".join(tests)


@dataclass(frozen=True)
class Run:
    """An inner run, and which process was which rank in each test."""

    finished: Finished
    directory: Path

    def pids(self, test: str) -> list[int]:
        """Process numbers by rank."""
        files = sorted(self.directory.glob(f"{glob.escape(test)}.*"), key=lambda file: file.suffix)
        assert files, f"{test} did not run"
        return [int(file.read_text()) for file in files]

    def warnings_about(self, test: str) -> list[str]:
        """Warnings that begin with the test's node id."""
        return [message for message in self.finished.warnings if f"::{test}: " in message]


def run_recorded(suite: Suite, *args: str) -> Run:
    directory = suite.directory.parent / f"{suite.directory.name}-pids"
    directory.mkdir()
    suite.write("conftest.py", CONFTEST)
    return Run(suite.run(*args, *LOADFILE, env={"PIDS": str(directory)}, timeout=180), directory)
