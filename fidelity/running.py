"""Run a suite, plainly or on ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fidelity.comparing import Verdicts
from fidelity.sources import source_of
from fidelity.suites import INSIDE, Suite

# pytest-asyncio speaks up in suites that have not heard of it, where warnings are errors.
_OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "fidelity_recorder")
_LIMIT = 1800


def verdicts(suite: Suite, *, on_ranks: bool) -> Verdicts:
    """Each test's verdict, by node id.

    Raises:
        RuntimeError: pytest came to no end of its own; the last of its output is the message.
    """
    with _place(suite) as (folder, options), tempfile.TemporaryDirectory() as scratch:
        record = Path(scratch, "verdicts.json")
        finished = subprocess.run(
            [*_command(suite, on_ranks), *options, *suite.arguments],
            cwd=folder,
            env=_environment(suite, suite.ranks if on_ranks and not suite.adopted else 0, record),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LIMIT,
            check=False,
        )
        if finished.returncode > 1 or not record.exists():
            raise RuntimeError(f"{suite.package}: {finished.stdout[-5000:]}")
        result: Verdicts = json.loads(record.read_text())
        return result


def _command(suite: Suite, on_ranks: bool) -> list[str]:
    plugin: tuple[str, ...] = ("--ddp-adopt=testcase",) if suite.adopted else ()
    if not on_ranks:
        plugin = ("-p", "no:ddp")
    return [sys.executable, "-m", "pytest", *_OPTIONS, *plugin]


@contextmanager
def _place(suite: Suite) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yield the folder in which to run a suite, and options that keep this repository's settings
    from it."""
    if suite.folder is None:
        yield source_of(suite), ()
    else:
        with tempfile.TemporaryDirectory() as directory:
            yield Path(directory), ("-c", os.devnull, f"--rootdir={suite.folder}")


def _environment(suite: Suite, ranks: int, record: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    return {
        **inherited,
        "PYTHONPATH": str(INSIDE),
        "FIDELITY_RANKS": str(ranks),
        "FIDELITY_RECORD": str(record),
        **suite.environment,
    }
