"""Sessions of pytest on the programs, and how each run ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
_LIMIT = 1800
"""Seconds of a session; for hangs alone."""


@dataclass(frozen=True, slots=True)
class Run:
    """How an item ended."""

    program: str
    """The file's name without ``.py``."""
    name: str
    """The name of the item, with its parameters."""
    outcome: str
    seconds: float
    text: str


@dataclass(frozen=True, slots=True)
class Session:
    """What a session of pytest printed, and its runs."""

    command: str
    output: str
    exit_status: int
    runs: list[Run]


def session(
    files: Iterable[Path],
    arguments: Sequence[str] = (),
    *,
    plugins: Sequence[str] = ("races_recorder",),
    variables: dict[str, str] | None = None,
    cwd: Path | None = None,
    limit: float = _LIMIT,
) -> Session:
    """Run programs in a session of their own, without the project's configuration.

    Raises:
        RuntimeError: the session has not come to its end.
        subprocess.TimeoutExpired: it takes longer than the limit, in seconds.
    """
    files = list(files)
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "runs.jsonl"
        record.touch()
        command = [sys.executable, "-m", "pytest", "-c", os.devnull]
        command += [f"--rootdir={files[0].parent}", "--tb=short", "-W", "ignore"]
        command += [part for plugin in plugins for part in ("-p", plugin)]
        command += [*arguments, *map(str, files)]
        inherited = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
        run = subprocess.run(
            command,
            env={
                **inherited,
                "PYTHONPATH": str(PROGRAMS),
                "RACES_RECORD": str(record),
                **(variables or {}),
            },
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit,
        )
        if run.returncode not in (0, 1):
            raise RuntimeError(f"pytest ended with {run.returncode}:\n{run.stdout}")
        runs = [_run(line) for line in record.read_text().splitlines()]
        return Session(" ".join(command), run.stdout, run.returncode, runs)


def _run(line: str) -> Run:
    row = json.loads(line)
    file, _, name = row["nodeid"].partition("::")
    return Run(Path(file).stem, name, row["outcome"], row["seconds"], row["text"])
