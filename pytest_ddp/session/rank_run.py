"""One rank's part in a test, from the order to its outcome."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from pytest_ddp.launch.rank_process import RankProcess
from pytest_ddp.outcome import stack_dumps
from pytest_ddp.outcome.outcome import Ending, RankOutcome, TimedReport
from pytest_ddp.protocol.messages import Done, EndAnnounced, Parameter, Passed, Phase
from pytest_ddp.protocol.rank_status import Calls, RankStatus
from pytest_ddp.system.stdlib import signal


class RankRun:
    """One rank's part in the running test."""

    def __init__(self, process: RankProcess) -> None:
        self.process = process
        self.reports: dict[Phase, TimedReport] = {}
        self.subtests: list[TimedReport] = []
        self.began = False
        self.parameters: tuple[Parameter, ...] = ()
        self.ending: Ending | None = None
        self.at = 0.0
        self.problem = ""
        self.retryable = False
        self.done: Done | None = None
        self.announced: EndAnnounced | None = None
        self.calls: Calls | None = None
        self.stacks = ""
        self.status: RankStatus | None = None

    @property
    def failed(self) -> bool:
        """True once it is certain that the test cannot pass."""
        if self.ending in (Ending.EXITED, Ending.STOPPED, Ending.NOT_BEGUN):
            return True
        if self.done is not None and self.done.exit_reason is not None:
            return True
        return any(timed.report.failed for timed in self.reports.values())

    def begin(self, nodeid: str) -> None:
        """Record that the rank has begun the test of this node id."""
        self.began, self.process.test = True, nodeid

    def take(self, report: pytest.TestReport | None, at: float) -> None:
        """Take a rank's report of a phase; None if no plugin could read it."""
        if report is not None:
            self._put_here(report)
            self.reports[Phase(report.when)] = TimedReport(report, at)

    def take_subtest(self, report: pytest.TestReport | None, at: float) -> None:
        """Take the report of a subtest, after which the rank goes on, whatever its outcome."""
        if report is not None:
            self._put_here(report)
            self.subtests.append(TimedReport(report, at))

    def _put_here(self, report: pytest.TestReport) -> None:
        """Convert the times of a report to those of our clock."""
        # One that the rank made of an interrupt has none.
        if report.start > 0:
            report.start = self.process.here(report.start)
            report.stop = self.process.here(report.stop)

    def take_passed(self, item: pytest.Item, began: float, phases: Iterable[Passed]) -> None:
        """Take phases that passed without output.

        Args:
            item: the test.
            began: its begin on the wall clock, seconds since the epoch.
            phases: as the rank sent them.
        """
        here = self.process.here
        self._keep(item, began, ((p, here(p.start / 1e9), here(p.stop / 1e9)) for p in phases))

    def _keep(
        self, item: pytest.Item, began: float, phases: Iterable[tuple[Passed, float, float]]
    ) -> None:
        for passed, start, stop in phases:
            report = pytest.TestReport(
                # Newer versions of pytest have the node id in parsed form.
                nodeid=getattr(item, "id", item.nodeid),
                location=item.location,
                keywords={},
                outcome="passed",
                longrepr=None,
                when=passed.phase.value,
                duration=passed.duration / 1e9,
                start=start,
                stop=stop,
            )
            self.reports.setdefault(passed.phase, TimedReport(report, stop - began))

    def end(self, ending: Ending, at: float) -> None:
        """Record how the part ended; a rank has to live until the others have ended theirs too."""
        if self.ending is None or (self.ending is Ending.DONE and ending is Ending.EXITED):
            self.ending, self.at = ending, at

    def is_gone(self, item: pytest.Item, began: float, at: float) -> None:
        """Record the end of the process, which the test may have announced.

        Args:
            item: the test.
            began: its begin on the wall clock, seconds since the epoch.
            at: seconds from then to the end of the process.
        """
        if self.ending is not None or self.failed or not self._was_announced():
            self.end(Ending.EXITED, at)
            return
        end, since = began + at, max((timed.at for timed in self.reports.values()), default=0.0)
        call = Passed(Phase.CALL, 0, 0, int((at - since) * 1e9))
        teardown = Passed(Phase.TEARDOWN, 0, 0, 0)
        self._keep(item, began, ((call, began + since, end), (teardown, end, end)))
        self.end(Ending.ANNOUNCED, at)

    def _was_announced(self) -> bool:
        process = self.process
        if self.announced is None or process.condemned:
            return False
        return self.announced.covers(_cause(process.returncode, process.files.stacks()))

    @property
    def died_before(self) -> bool:
        """True if the rank, reused from another test, died before it began this one."""
        return self.ending is Ending.EXITED and not self.began and bool(self.process.test)

    def outcome(self, *, setup_only: bool = False) -> RankOutcome:
        """The record of this rank; ``setup_only`` if no call was to follow its setup."""
        assert self.ending is not None
        process = self.process
        outcome = RankOutcome(
            rank=process.rank,
            ending=self.ending,
            at=self.at,
            reports=dict(self.reports),
            subtests=tuple(self.subtests),
            children=process.files.stacks_of_children(),
            problem=process.condemned or self.problem,
            done=self.done,
            status=self.status,
            trace=process.files.trace(),
            machine=process.machine,
            setup_only=setup_only,
        )
        if self.ending in (Ending.EXITED, Ending.STOPPED):
            return self._with_remains(outcome)
        return outcome

    def _with_remains(self, outcome: RankOutcome) -> RankOutcome:
        """Add the stacks, output and last phase of a rank that ended before it could report."""
        process = self.process
        stacks = self.stacks or process.files.stacks()
        returncode = process.returncode if outcome.ending is Ending.EXITED else None
        returncode = _cause(returncode, stacks)
        ending = outcome.ending if returncode is None else Ending.EXITED
        stderr, native_stacks = stack_dumps.split(process.output("stderr"))
        mark = process.files.mark()
        return replace(
            outcome,
            ending=ending,
            returncode=returncode,
            stacks=stacks,
            stdout=process.output("stdout"),
            stderr=stderr,
            native=native_stacks,
            phase=mark.phase,
            began_at=mark.site,
            seen_at=mark.seen,
            raised=mark.raised,
        )


def _cause(returncode: int | None, stacks: str) -> int | None:
    """The fatal signal of a process that was dying when it was killed, else its exit code."""
    fatal = stack_dumps.fatal_signal(stacks)
    return -fatal if fatal is not None and returncode in (None, -signal.SIGKILL) else returncode
