"""Example suites that acceptance tests write, run under a real pytest and ask about.

One inner run costs a second, so an acceptance module writes many small inner tests, runs
them once and lets many outer tests look at the one result. It is a fork of an interpreter
that has imported pytest and torch (:mod:`tests.warm.interpreter`), unless a fresh one is asked
for.

``DDP_ACCEPTANCE_ARGS`` (such as ``-n 2`` or ``--ddp-start-method=spawn``) adds
arguments to every inner run: the same promises have to hold under them.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import signal
import subprocess
import textwrap
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from tests.warm import interpreter

_WORKER = re.compile(r"^\[gw\d+\] .*\n?", re.MULTILINE)
EXTRA_ARGS = tuple(shlex.split(os.environ.get("DDP_ACCEPTANCE_ARGS", "")))
UNDER_XDIST = any(re.match(r"-n|--numprocesses|--tx|--dist", arg) for arg in EXTRA_ARGS)
SPAWNED = "spawn" in " ".join(EXTRA_ARGS)
LOADFILE = ("--dist=loadfile",) if UNDER_XDIST else ()
"""Arguments for a run in which the tests of one file must run in order, on one worker."""

ZOO = os.environ.get("DDP_ACCEPTANCE_ZOO", "")
"""A folder of installed plugins that each inner run has beside its own (``make zoo``)."""

_PATIENCE = 12 if SPAWNED else 3
"""Limits of runs are for a quiet machine; a loaded one must not fail them. A spawned rank
imports torch and collects by itself, which takes seconds instead of milliseconds."""
INNER = Path(__file__).parent / "inner"
"""The folder in which inner runs find the plugin that records them."""
_NOT_INHERITED = re.compile(
    r"PYTEST|DDP_ACCEPTANCE|TORCHELASTIC|COV_CORE|COVERAGE"
    r"|(CI|BUILD_NUMBER|GITHUB_ACTIONS|GITLAB_CI)$"  # pytest and Hypothesis act otherwise there
    r"|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)$|MASTER_(ADDR|PORT)$|(OMP|OPENBLAS|MKL)_NUM_THREADS$"
)
_INI = "[pytest]\nasyncio_default_fixture_loop_scope = function\n"


def flat(text: str) -> str:
    """A text on one line, since error texts are wrapped where they happen to be."""
    return " ".join(text.split())


@dataclass(frozen=True, slots=True)
class Report:
    """One phase of one inner test, as the inner pytest reported it."""

    nodeid: str
    when: str
    outcome: str
    category: str
    """The category as the terminal counts it: passed, failed, error, skipped, xfailed, xpassed or
    "" ."""
    wasxfail: str | None
    text: str
    """The whole ``longrepr`` as text; empty if the phase passed."""
    message: str
    """``reprcrash.message``, which the short summary shows; empty without one."""
    path: str
    line: int
    """The line to which ``reprcrash`` points, counted from 1; 0 without one."""
    sections: tuple[tuple[str, str], ...]
    """Title and content of captured output; the middle of very long ones is left out."""
    duration: float


@dataclass(frozen=True, slots=True)
class Result:
    """All reports of one inner test, in the order in which they came."""

    nodeid: str
    reports: tuple[Report, ...]

    @property
    def verdict(self) -> str:
        """The counted categories in the order of phases, joined by "+": "failed+error"."""
        return "+".join(report.category for report in self.reports if report.category) or "none"

    @property
    def text(self) -> str:
        """What the terminal shows of the test's failures, skips and errors.

        Without the line that xdist puts before each of them.
        """
        return "\n".join(_WORKER.sub("", report.text) for report in self.reports if report.text)

    @property
    def sections(self) -> dict[str, str]:
        """Captured output by title, of the last phase that has the title."""
        return {title: text for report in self.reports for title, text in report.sections}

    @property
    def duration(self) -> float:
        """Seconds over all phases."""
        return sum(report.duration for report in self.reports)

    def phase(self, when: str) -> Report:
        """The one report of a phase.

        Raises:
            AssertionError: the phase was reported twice or not at all.
        """
        found = [report for report in self.reports if report.when == when]
        assert len(found) == 1, f"{self.nodeid} has {len(found)} reports of {when}, not one"
        return found[0]


@dataclass(frozen=True)
class Finished:
    """An inner run that has ended, and all that it left to look at."""

    directory: Path
    returncode: int
    stdout: str
    stderr: str
    records: tuple[dict[str, Any], ...]
    duration: float
    """Seconds from start to end of the pytest process."""

    @cached_property
    def results(self) -> dict[str, Result]:
        """Results by node id."""
        reports: dict[str, list[Report]] = {}
        for record in self._of_kind("report"):
            record["sections"] = tuple((title, text) for title, text in record["sections"])
            report = Report(**record)
            reports.setdefault(report.nodeid, []).append(report)
        return {nodeid: Result(nodeid, tuple(found)) for nodeid, found in reports.items()}

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Messages of recorded warnings."""
        return tuple(record["message"] for record in self._of_kind("warning"))

    @cached_property
    def collect_errors(self) -> dict[str, str]:
        """Text of failed collection by node id."""
        return {record["nodeid"]: record["text"] for record in self._of_kind("collect_error")}

    def diagnosed(self, folder: str) -> dict[str, dict[str, Any]]:
        """The first failure of each file of ``--ddp-diagnosis=folder``, by the test's name."""
        files = (self.directory / folder).iterdir()
        records = (json.loads(path.read_text(encoding="utf-8")) for path in files)
        return {
            record["nodeid"].partition("::test_")[2]: record["failures"][0] for record in records
        }

    @property
    def output(self) -> str:
        """Standard output and standard error together."""
        return self.stdout + self.stderr

    @property
    def flat(self) -> str:
        """:attr:`output` on one line."""
        return flat(self.output)

    def __getitem__(self, name: str) -> Result:
        """The result of the one test of this name (``test_x``, ``test_x[1]``, ``A::test_x``).

        Raises:
            AssertionError: there is none, or more than one.
        """
        found = [nodeid for nodeid in self.results if f"::{nodeid}".endswith(f"::{name}")]
        assert len(found) == 1, f"{name}: {found or 'not reported'}\n{self.tail()}"
        return self.results[found[0]]

    def __contains__(self, name: str) -> bool:
        return any(f"::{nodeid}".endswith(f"::{name}") for nodeid in self.results)

    def assert_outcomes(self, **expected: int) -> None:
        """Compare the counts of all categories: ``passed=3, failed=1``; others are 0.

        Raises:
            AssertionError: a count differs.
        """
        counted = Counter(
            report.category
            for result in self.results.values()
            for report in result.reports
            if report.category
        )
        assert dict(counted) == {k: v for k, v in expected.items() if v}, self.tail()

    def tail(self, size: int = 8000) -> str:
        """The end of what was printed, for a failure text."""
        return f"inner pytest returned {self.returncode}:\n{self.output[-size:]}"

    def _of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [
            {name: value for name, value in record.items() if name != "kind"}
            for record in self.records
            if record["kind"] == kind
        ]


class Suite:
    """A directory with an example suite, its own root for pytest."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.fresh = False
        """Whether runs get interpreters that have imported nothing."""
        self._runs = 0
        self.write("pytest.ini", _INI)

    def write(self, name: str, source: str) -> Path:
        """Write a file of the suite; common indentation is taken off."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        return path

    def run(
        self,
        *args: str,
        timeout: float = 60.0,
        env: Mapping[str, str | None] | None = None,
        extra: Sequence[str] = EXTRA_ARGS,
        spawns: int = 0,
    ) -> Finished:
        """Run pytest on the suite to its end.

        Args:
            args: pytest's arguments.
            timeout: seconds on a quiet machine under fork; more is given where more is due.
            env: variables to set, or with None to remove.
            extra: replaces ``DDP_ACCEPTANCE_ARGS``, for a run that cannot be had with it.
            spawns: how many processes it spawns that may find torch imported.

        Raises:
            AssertionError: it did not end in time; its process group has been killed.
        """
        process = self.start(*args, env=env, extra=extra, spawns=spawns)
        return process.finish(timeout * _PATIENCE)

    def start(
        self,
        *args: str,
        env: Mapping[str, str | None] | None = None,
        extra: Sequence[str] = EXTRA_ARGS,
        spawns: int = 0,
    ) -> Running:
        """Start pytest on the suite, for tests that interfere with it; see :meth:`run`."""
        self._runs += 1
        warm = functools.partial(interpreter.start, spawns=spawns)
        start = interpreter.start_fresh if self.fresh else warm
        return Running(self.directory, self._runs, (*extra, *args), env or {}, start)


class Running:
    """A pytest process on its way, leader of its own process group.

    Output goes to files: a process that outlives pytest and holds a pipe open could
    otherwise keep the reader waiting.
    """

    def __init__(
        self,
        directory: Path,
        number: int,
        args: Sequence[str],
        env: Mapping[str, str | None],
        start: interpreter.Start,
    ) -> None:
        self._directory = directory
        self._logs = directory.parent / f"{directory.name}-run{number}"
        self._logs.mkdir()
        self._started = time.monotonic()
        with (
            open(os.devnull) as nothing,
            self._log("stdout") as stdout,
            self._log("stderr") as stderr,
        ):
            self.process = start(
                ["-m", "pytest", "-p", "recorder", "-p", "no:cacheprovider", *args],
                cwd=directory,
                env=_environment(self._logs, env),
                stdin=nothing.fileno(),
                stdout=stdout.fileno(),
                stderr=stderr.fileno(),
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stdout(self) -> str:
        """What has been printed so far."""
        return self._read("stdout")

    def finish(self, timeout: float) -> Finished:
        """Wait for the end, at most ``timeout`` seconds.

        Raises:
            AssertionError: it did not end in time; its process group has been killed.
        """
        try:
            returncode = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            late = f"the inner pytest did not end within {timeout:.0f} s\n"
            raise AssertionError(late + self._finished(self.kill()).tail()) from None
        except BaseException:  # also an interrupt of the outer run must leave nothing behind
            self.kill()
            raise
        return self._finished(returncode)

    def kill(self) -> int:
        """Kill the process group and reap its leader; the ranks follow by themselves."""
        os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait()

    def _finished(self, returncode: int) -> Finished:
        records = self._read("records").splitlines()
        return Finished(
            directory=self._directory,
            returncode=returncode,
            stdout=self._read("stdout"),
            stderr=self._read("stderr"),
            records=tuple(json.loads(line) for line in records),
            duration=time.monotonic() - self._started,
        )

    def _log(self, name: str) -> IO[bytes]:
        return (self._logs / name).open("wb")

    def _read(self, name: str) -> str:
        path = self._logs / name
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _environment(logs: Path, changes: Mapping[str, str | None]) -> dict[str, str]:
    """The outer environment without what speaks of the outer run."""
    clean = {k: v for k, v in os.environ.items() if not _NOT_INHERITED.match(k)}
    paths = [str(INNER), *filter(None, [ZOO, clean.get("PYTHONPATH")])]
    clean |= {
        "PYTHONPATH": os.pathsep.join(paths),
        "DDP_ACCEPTANCE_RECORD": str(logs / "records"),
        "PYTEST_DEBUG_TEMPROOT": str(logs),
        "COLUMNS": "120",
    }
    for name, value in changes.items():
        if value is None:
            clean.pop(name, None)
        else:
            clean[name] = value
    return clean
