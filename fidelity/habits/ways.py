"""Ways to run tests on ranks, and one run of pytest under each."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUITES = Path(__file__).parent / "suites"
ZOO = Path(__file__).parents[2] / "build" / "zoo" / "site-packages"
_LIMIT = 1800
"""Seconds for a run; process groups and tests that hang have less."""
_PLUGINS = ("xdist", "pytest_timeout", "pytest_cov", "rerunfailures", "habits_recorder")


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run tests on ranks."""

    name: str
    suite: str
    launcher: tuple[str, ...] = (sys.executable,)
    options: tuple[str, ...] = ()


WAYS = (
    Way("pytest-ddp", "test_ddp", options=("-p", "ddp")),
    Way(
        "`torchrun -m pytest`",
        "test_torchrun",
        (str(Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc-per-node=2"),
    ),
    Way("`MultiProcessTestCase`", "test_multi_process"),
    Way("`mp.spawn`", "test_spawn"),
)


@dataclass(frozen=True)
class Seen:
    """What a run has left to look at."""

    folder: Path
    code: int | None
    """The command's exit code; None if it had to be ended."""
    seconds: float
    output: str
    records: tuple[dict[str, Any], ...]

    def calls(self, name: str) -> list[dict[str, Any]]:
        """Reports of a test's call, or of a phase that failed in place of it; no subtests'."""
        return [
            report
            for report in self.records
            if report["kind"] == "report"
            and report["test"].startswith(f"test_{name}")
            and not report["subtest"]
            and (report["when"] == "call" or report["outcome"] != "passed")
        ]

    def passed(self, name: str) -> bool:
        """Whether all that was said of a test is that it passed."""
        calls = self.calls(name)
        return bool(calls) and all(report["outcome"] == "passed" for report in calls)

    def marks(self, name: str) -> int:
        """The number of ranks on which the body of a test began."""
        return len(list((self.folder / "marks").glob(f"{name}-*")))


def run(way: Way, folder: Path, *options: str, keys: str = "") -> Seen:
    """Run the way's suite in a folder, in which earlier runs may have left their cache.

    Args:
        way: it is asked for.
        folder: the working directory.
        options: pytest's.
        keys: what a user types, line by line, once there is a prompt of pdb; none has a pipe.
    """
    marks, records = folder / "marks", folder / f"records-{time.monotonic_ns()}"
    marks.mkdir(exist_ok=True)
    records.mkdir()
    plugins = [word for name in _PLUGINS for word in ("-p", name)]
    suite = [f"--rootdir={SUITES}", "-c", os.devnull, str(SUITES / f"{way.suite}.py")]
    if "no:cacheprovider" not in options:
        # Otherwise nobody knows the option, which -W error makes an error of.
        suite += ["-o", f"cache_dir={folder / 'cache'}"]
    command = [*way.launcher, "-m", "pytest", *suite, *plugins, *way.options, *options]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (SUITES, ZOO))),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "HABITS_RECORD": str(records),
        "HABITS_MARKS": str(marks),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    began = time.monotonic()
    code, output = _run(command, folder, environment, keys)
    lines = [line for file in records.iterdir() for line in file.read_text().splitlines()]
    told = tuple(json.loads(line) for line in lines)
    return Seen(folder, code, time.monotonic() - began, output, told)


def _run(
    command: Sequence[str], folder: Path, environment: dict[str, str], keys: str
) -> tuple[int | None, str]:
    if keys:
        # A terminal, as pdb and torchrun's ranks share it.
        command = ["script", "-qefc", shlex.join(command), "/dev/null"]
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE if keys else subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            text=True,
        )
        if keys:
            _type(process, output, keys)
        try:
            code: int | None = process.wait(_LIMIT)
        except subprocess.TimeoutExpired:
            code = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        output.seek(0)
        return code, output.read()


def _type(process: subprocess.Popen[str], output: Any, keys: str) -> None:
    """Answer the first prompt."""
    assert process.stdin is not None
    end = time.monotonic() + _LIMIT / 3
    while process.poll() is None and time.monotonic() < end:
        if "(Pdb)" in os.pread(output.fileno(), 1 << 20, 0).decode(errors="replace"):
            process.stdin.write(keys)
            process.stdin.flush()
            return
        time.sleep(0.1)
