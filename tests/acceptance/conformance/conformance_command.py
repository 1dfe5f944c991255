"""``python -m ddp_conformance`` in a process of its own, and what it leaves."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import ddp_conformance
from jsonschema import Draft202012Validator

from tests.environment import without_outer_run
from tests.warm import interpreter

SCHEMA = json.loads((Path(ddp_conformance.__file__).parent / "report.schema.json").read_text())


@dataclass(frozen=True)
class Done:
    """A program that has ended."""

    code: int
    text: str
    directory: Path

    @property
    def report(self) -> dict[str, Any]:
        """The report that the command wrote, once it is known to be in the documented form."""
        found: dict[str, Any] = json.loads((self.directory / "report.json").read_text())
        Draft202012Validator(SCHEMA).validate(found)
        return found

    def verdict(self, guarantee: str, subject: str, world_size: int = 2) -> dict[str, Any]:
        """The only entry of the report for these three."""
        (found,) = [
            entry
            for entry in self.report["verdicts"]
            if (entry["guarantee"], entry["subject"]) == (guarantee, subject)
            and entry["world_size"] == world_size
        ]
        return dict(found)


def run(directory: Path, *arguments: str, **environment: str) -> Done:
    """``python -m`` in the directory, with all output in one text."""
    done = interpreter.run(
        ["-m", *arguments],
        cwd=directory,
        env=without_outer_run() | environment,
        timeout=300,
        merged=True,
    )
    return Done(done.returncode, done.stdout, directory)


def written(directory: Path, **files: str) -> Path:
    for name, text in files.items():
        (directory / f"{name}.py").write_text(dedent(text))
    return directory
