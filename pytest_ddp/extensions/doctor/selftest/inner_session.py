"""A pytest session of its own on suites of the package, away from the user's files and settings."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_ddp.system import processes
from pytest_ddp.system.stdlib import os, shutil, signal, subprocess, tempfile, time
from pytest_ddp.system.tempfiles import SessionFolder

SUITES = Path(__file__).with_name("suites")
_NOT_INHERITED = re.compile(
    r"(PYTEST_(ADDOPTS|CURRENT_TEST|XDIST\w*)|TORCHELASTIC\w+|MASTER_(ADDR|PORT))$"
    r"|((LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|COV_CORE\w*|COVERAGE_PROCESS\w*)$"
)
"""What speaks of another session, and arguments that are meant for the user's own tests."""
_CLEAN_UP = 10.0
"""Seconds for a session that is ended before its time."""
_INI = "[pytest]\naddopts = --strict-markers\n"


@dataclass(frozen=True, slots=True)
class Ended:
    """A session that is over."""

    code: int | None
    """pytest's exit code; None if it had to be killed."""
    output: str
    seconds: float


@contextlib.contextmanager
def folder_with(*suites: str) -> Iterator[Path]:
    """A folder with copies of suites: nothing is written to where the package is installed."""
    # As a session of the plugin has one: the next sweeps what a killed doctor has left.
    folder = SessionFolder()
    try:
        for suite in suites:
            shutil.copy(SUITES / suite, folder.path)
        Path(folder.path, "pytest.ini").write_text(_INI)
        yield Path(folder.path)
    finally:
        folder.close()


def run(folder: Path, *arguments: str, environment: dict[str, str], limit: float) -> Ended:
    """Run pytest there to its end.

    Args:
        folder: of :func:`folder_with`.
        arguments: pytest's.
        environment: variables that are set beside ours.
        limit: seconds; then the session is killed.
    """
    # By name, for where PYTEST_DISABLE_PLUGIN_AUTOLOAD is set.
    plugins = ("-p", "ddp", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", *plugins, *arguments]
    inherited = {name: text for name, text in os.environ.items() if not _NOT_INHERITED.match(name)}
    begin = time.monotonic()
    # A file, since a process that outlives pytest would hold a pipe open.
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=inherited | environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        code: int | None = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(limit)
        finally:
            _end(process)
        log.seek(0)
        output = log.read().decode(errors="replace")
    return Ended(code, output, time.monotonic() - begin)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a session that still runs: first as Ctrl-C does, with which it cleans up."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(_CLEAN_UP)
    if process.poll() is None:
        processes.kill_group(process.pid)
        process.wait()
