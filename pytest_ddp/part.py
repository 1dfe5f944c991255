"""One rank's part in a test, from the order to its outcome."""

from __future__ import annotations

from pytest_ddp.launcher import RankProcess
from pytest_ddp.outcome import Ending, RankOutcome, TimedReport
from pytest_ddp.protocol import Done, Phase
from pytest_ddp.survey import Calls

_LOST_CHANNEL = "lost its connection to pytest (did the test close all descriptors?)"


class Part:
    """One rank's part in the running test."""

    def __init__(self, process: RankProcess) -> None:
        self.process = process
        self.reports: dict[Phase, TimedReport] = {}
        self.began = False
        self.ending: Ending | None = None
        self.at = 0.0
        self.problem = ""
        self.infrastructure = False
        self.done: Done | None = None
        self.calls: Calls | None = None
        self.stacks = ""

    @property
    def failed(self) -> bool:
        """True once it is certain that the test cannot pass."""
        if self.ending in (Ending.EXITED, Ending.STOPPED, Ending.NOT_BEGUN):
            return True
        if self.done is not None and self.done.exit_reason is not None:
            return True
        return any(timed.report.failed for timed in self.reports.values())

    def end(self, ending: Ending, at: float) -> None:
        if self.ending is None:
            self.ending, self.at = ending, at

    def outcome(self) -> RankOutcome:
        assert self.ending is not None
        lost = self.ending in (Ending.EXITED, Ending.STOPPED)
        return RankOutcome(
            rank=self.process.rank,
            ending=self.ending,
            at=self.at,
            reports=dict(self.reports),
            returncode=self.process.returncode if self.ending is Ending.EXITED else None,
            stacks=self.stacks or self.process.stacks() if lost else "",
            stdout=self.process.output("stdout") if lost else "",
            stderr=self.process.output("stderr") if lost else "",
            problem=_LOST_CHANNEL if self.process.outlived_channel else self.problem,
            done=self.done,
        )
