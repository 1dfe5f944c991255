"""Builders of test outcomes, for tests of what follows the run without any process.

Reports are real: pytest runs a few lines in this process and its reports make the
round trip over JSON that a rank's reports make.
"""

from __future__ import annotations

import functools
import itertools
import json
import linecache
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from _pytest._code.code import ExceptionInfo, TracebackStyle
from _pytest.reports import TestReport

from pytest_ddp.outcome.outcome import Ending, RankOutcome, RunOutcome, TimedReport
from pytest_ddp.protocol.messages import Done, Phase
from pytest_ddp.protocol.rank_status import GroupCount
from pytest_ddp.settings.options import Output
from pytest_ddp.verdict.merge import merge

START = 1_700_000_000.0
"""Wall-clock second at which every hand-made test begins."""
NODEID = "tests/test_made.py::test_made"
_files = itertools.count()


def through_json(report: TestReport) -> TestReport:
    """The report as the controller gets it: tuples become lists on the way."""
    return TestReport._from_json(json.loads(json.dumps(report._to_json())))


def report(
    phase: Phase,
    outcome: Literal["passed", "failed", "skipped"] = "passed",
    longrepr: Any = None,
    *,
    sections: Mapping[str, str] | None = None,
    duration: float = 0.5,
    start: float = START,
    **extra: Any,
) -> TestReport:
    """A rank's report, as the controller gets it."""
    made = TestReport(
        nodeid=NODEID,
        location=("tests/test_made.py", 9, "test_made"),
        keywords={"test_made": 1},
        outcome=outcome,
        longrepr=longrepr,
        when=phase.value,
        sections=list((sections or {}).items()),
        duration=duration,
        start=start,
        stop=start + duration,
        **extra,
    )
    return through_json(made)


def failed(
    source: str,
    phase: Phase = Phase.CALL,
    *,
    x: Any = None,
    style: TracebackStyle = "long",
    show_locals: bool = False,
    **extra: Any,
) -> TestReport:
    """A failed report of the exception that ``source`` raises, with its traceback.

    The same source lies in the same file, so that ranks differ by ``x`` alone.
    """
    longrepr = _excinfo(source, x).getrepr(style=style, showlocals=show_locals)
    return report(phase, "failed", longrepr, **extra)


def xfailed(reason: str, phase: Phase = Phase.CALL) -> TestReport:
    """A failure that the test expected."""
    longrepr = _excinfo("raise ValueError('as expected')", None).getrepr()
    return report(phase, "skipped", longrepr, wasxfail=reason)


def xpassed(reason: str) -> TestReport:
    """A success that the test did not expect, with ``strict=False``."""
    return report(Phase.CALL, wasxfail=reason)


def xpassed_strict(reason: str) -> TestReport:
    """A success that the test did not expect, with ``strict=True``."""
    return report(Phase.CALL, "failed", f"[XPASS(strict)] {reason}")


def skipped(reason: str, phase: Phase = Phase.CALL, line: int = 12) -> TestReport:
    """A skip, with pytest's triple."""
    return report(phase, "skipped", ("/src/test_made.py", line, f"Skipped: {reason}"))


def rank(
    number: int,
    *reports: TestReport,
    ending: Ending = Ending.DONE,
    at: float = 2.0,
    counts: tuple[GroupCount, ...] = (),
    exit_reason: str | None = None,
    **known: Any,
) -> RankOutcome:
    """A rank with these reports, half a second apart; a rank that is DONE reports its counts."""
    timed = {Phase(r.when): TimedReport(r, 0.5 * (i + 1)) for i, r in enumerate(reports)}
    return RankOutcome(
        rank=number,
        ending=ending,
        at=at,
        reports=timed,
        done=done(counts, exit_reason) if ending is Ending.DONE else None,
        **known,
    )


def passing(number: int, call: TestReport | None = None, **known: Any) -> RankOutcome:
    """A rank that ran all three phases; ``call`` stands in for a call that passed."""
    setup, teardown = report(Phase.SETUP), report(Phase.TEARDOWN)
    return rank(number, setup, call or report(Phase.CALL), teardown, **known)


def leaving_setup(number: int, setup: TestReport, **known: Any) -> RankOutcome:
    """A rank whose setup did not pass, so that it has no call."""
    return rank(number, setup, report(Phase.TEARDOWN), **known)


def lost_in_call(number: int, ending: Ending = Ending.EXITED, **known: Any) -> RankOutcome:
    """A rank that set up and then died or was stopped."""
    return rank(number, report(Phase.SETUP), ending=ending, **known)


def done(counts: tuple[GroupCount, ...] = (), exit_reason: str | None = None) -> Done:
    """A rank's last message about a test."""
    return Done(
        test=1,
        passed=(),
        counts=counts,
        group_doubt=None,
        holds_group=False,
        needs_peers=False,
        rank_doubt=(),
        used_rendezvous=False,
        irreversible=False,
        modules_changed=False,
        changes=(),
        setup_show="",
        exit_reason=exit_reason,
        exit_code=None,
    )


def default_group(collectives: int, *members: int) -> tuple[GroupCount, ...]:
    """Counts of a rank that used the default group alone."""
    return (GroupCount("0", members, collectives),)


def run(*ranks: RankOutcome, **known: Any) -> RunOutcome:
    """The outcome of a test on these ranks."""
    fields: dict[str, Any] = {
        "nodeid": NODEID,
        "location": ("tests/test_made.py", 9, "test_made"),
        "keywords": {"test_made": 1, "ddp": 1},
        "backend": "gloo",
        "start": START,
        "duration": max((r.at for r in ranks), default=0.0),
    }
    return RunOutcome(ranks=ranks, **(fields | known))


def shifted(made: RankOutcome, phase: Phase, at: float) -> RankOutcome:
    """Return a rank with one report delivered at another moment."""
    timed = TimedReport(made.reports[phase].report, at)
    return replace(made, reports={**made.reports, phase: timed})


@functools.cache
def _test_of(source: str) -> Callable[[Any], None]:
    """A function of ``x`` with these lines, in a file of its own that tracebacks can quote."""
    path = f"/src/test_made_{next(_files)}.py"
    body = "def test_made(x):\n" + "".join(f"    {line}\n" for line in source.splitlines())
    linecache.cache[path] = (len(body), None, body.splitlines(keepends=True), path)
    scope: dict[str, Any] = {}
    exec(compile(body, path, "exec"), scope)
    test: Callable[[Any], None] = scope["test_made"]
    return test


def _excinfo(source: str, x: Any) -> ExceptionInfo[BaseException]:
    with pytest.raises(BaseException) as excinfo:
        _test_of(source)(x)
    # The first frame is this function, which no rank's traceback has.
    excinfo.traceback = excinfo.traceback[1:]
    return excinfo


def merged(*ranks: RankOutcome, output: Output = Output.FAILED, **known: Any) -> list[TestReport]:
    """The merged reports of a test on these ranks."""
    return merge(run(*ranks, **known), output)


def words(reports: Sequence[TestReport]) -> dict[str, str]:
    """The outcome by phase, with xfailed and xpassed distinguished."""
    shown = {}
    for report in reports:
        word: str = report.outcome
        if hasattr(report, "wasxfail"):
            word = {"skipped": "xfailed", "passed": "xpassed"}[word]
        shown[str(report.when)] = word
    return shown


def whole(call: str, *, setup: str = "passed", teardown: str = "passed") -> dict[str, str]:
    """The words of a test that had all three phases."""
    return {"setup": setup, "call": call, "teardown": teardown}


def without_call(setup: str, *, teardown: str = "passed") -> dict[str, str]:
    """The words of a test that ended with its setup."""
    return {"setup": setup, "teardown": teardown}


def verdict(report: TestReport) -> str:
    """The text of a failed phase in the short summary."""
    message: str = report.longrepr.reprcrash.message  # type: ignore[union-attr]
    return message


def call_of(reports: Sequence[TestReport]) -> TestReport:
    """The report of the call."""
    (found,) = [report for report in reports if report.when == "call"]
    return found


SITE = "/venv/lib/python3.11/site-packages"
MACHINERY = (
    (f"{SITE}/_pytest/python.py", 167, "pytest_pyfunc_call"),
    (f"{SITE}/pluggy/_callers.py", 121, "_multicall"),
    (f"{SITE}/_pytest/runner.py", 179, "pytest_runtest_call"),
    (f"{SITE}/pytest_ddp/rank/runner.py", 120, "_run_protocol"),
    ("<frozen runpy>", 88, "_run_code"),
)
"""What lies below a test's own frames in every rank: file, line, function."""


def stacks(
    *frames: tuple[str, int, str],
    title: str = "",
    header: str = "Current thread 0x00007f5c8a7fb740",
    machinery: bool = True,
) -> str:
    """One thread as faulthandler writes it, most recent call first."""
    lines = [f"{title}\n"] if title else []
    lines.append(f"{header} (most recent call first):")
    for file, line, function in (*frames, *(MACHINERY if machinery else ())):
        lines.append(f'  File "{file}", line {line} in {function}')
    return "\n".join(lines) + "\n"


FAILED = failed("assert 1 == 2, 'assert 1 == 2'")
FAILED_SETUP = failed("raise OSError('no data')", Phase.SETUP)
FAILED_TEARDOWN = failed("raise OSError('still open')", Phase.TEARDOWN)

KNOWN = "known bug"
PASSED = report(Phase.CALL)
XFAILED, XPASSED, STRICT = xfailed(KNOWN), xpassed(KNOWN), xpassed_strict(KNOWN)
SKIPPED = skipped("no GPU")

TEST_FILE = str(Path.cwd() / "tests" / "test_made.py")
ALL_REDUCE = (
    (f"{SITE}/torch/distributed/distributed_c10d.py", 3252, "all_reduce"),
    (f"{SITE}/torch/distributed/c10d_logger.py", 83, "wrapper"),
)
BLOCKED = stacks(*ALL_REDUCE, (TEST_FILE, 33, "test_made"))
SPINNING = stacks((TEST_FILE, 50, "spin"), (TEST_FILE, 35, "test_made"))
CRASHED = stacks(
    (TEST_FILE, 14, "helper"),
    (TEST_FILE, 30, "test_made"),
    title="Fatal Python error: Segmentation fault",
)
ASSERTED = failed("x = 3\nassert x == 4, 'assert 3 == 4\\n +  where 3 = f()'")


def gloo(words: str) -> TestReport:
    """What gloo raises, as torch 2.13 words it."""
    return failed(
        'raise RuntimeError("[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553]'
        f' {words}. This is typically caused by a remote worker crashing.")'
    )


CLOSED = gloo("Connection closed by peer [127.0.0.1]:5004")
RESET = gloo("Read error [127.0.0.1]:6004: Connection reset by peer")


def failure(*ranks: RankOutcome, **known: Any) -> TestReport:
    """The first failed report of the merged test."""
    reports = merge(run(*ranks, **known), Output.FAILED)
    return next(report for report in reports if report.failed)


def place(report: TestReport) -> tuple[str, int]:
    """Path and line that a failure points to."""
    crash = report.longrepr.reprcrash  # type: ignore[union-attr]
    return crash.path, crash.lineno


def text(*ranks: RankOutcome, **known: Any) -> str:
    """The text of a failure as the terminal shows it, without colour."""
    return failure(*ranks, **known).longreprtext


def dead(number: int = 1, returncode: int = -signal.SIGSEGV, **known: Any) -> RankOutcome:
    """A rank that a signal or an exit ended in its call."""
    return lost_in_call(number, returncode=returncode, **known)


def stopped(number: int, stacks: str = BLOCKED, **known: Any) -> RankOutcome:
    """A rank that the controller ended in its call."""
    return lost_in_call(number, Ending.STOPPED, stacks=stacks, **known)
