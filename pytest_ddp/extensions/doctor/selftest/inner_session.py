"""A separate pytest session on suites of the package, without the user's files and settings."""

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
"""Variables of another session, and arguments meant for the user's own tests."""
_CLEAN_UP = 10.0
"""Seconds for the cleanup of a session that is interrupted."""
_INI = "[pytest]\naddopts = --strict-markers\n"


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a session."""

    code: int | None
    """pytest's exit code; None if it had to be killed."""
    output: str
    seconds: float


@contextlib.contextmanager
def folder_with(*suites: str) -> Iterator[Path]:
    """A folder with copies of suites: nothing is written to where the package is installed."""
    # The same kind of folder as a session's: if the doctor is killed, the next session removes it.
    folder = SessionFolder()
    try:
        for suite in suites:
            shutil.copy(SUITES / suite, folder.path)
        Path(folder.path, "pytest.ini").write_text(_INI)
        yield Path(folder.path)
    finally:
        folder.close()


def run(folder: Path, *arguments: str, environment: dict[str, str], limit: float) -> Ended:
    """Run pytest in this folder to its end.

    Args:
        folder: of :func:`folder_with`.
        arguments: pytest's.
        environment: variables to set besides the inherited ones.
        limit: seconds; then the session is killed.
    """
    # -p ddp loads the plugin even if PYTEST_DISABLE_PLUGIN_AUTOLOAD is set.
    plugins = ("-p", "ddp", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", *plugins, *arguments]
    inherited = {name: text for name, text in os.environ.items() if not _NOT_INHERITED.match(name)}
    begin = time.monotonic()
    # A file, not a pipe: a process that outlives pytest would keep a pipe open.
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
    """End a session that still runs: SIGINT first, so that it cleans up, then SIGKILL."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(_CLEAN_UP)
    if process.poll() is None:
        processes.kill_group(process.pid)
        process.wait()
