"""One attempt at one test: the wait loop that hears ranks, their ends, and the clock."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import pytest

from pytest_ddp import ends
from pytest_ddp.exchanges import Exchanges
from pytest_ddp.launcher import Gone, Launcher, RankProcess
from pytest_ddp.live import LiveLine, doing_of
from pytest_ddp.memory import count_oom_kills
from pytest_ddp.outcome import Ending, Hang, RunOutcome, TimedReport
from pytest_ddp.part import Part
from pytest_ddp.plan import LaunchPlan
from pytest_ddp.proof import compare
from pytest_ddp.proof.prober import Prober
from pytest_ddp.protocol import (
    Began,
    Done,
    Exchange,
    Finished,
    FromRank,
    Go,
    GroupPlan,
    Json,
    NotBegun,
    Phase,
    PhaseReported,
    RankReady,
    RunTest,
    Warned,
)
from pytest_ddp.rendezvous import listen, rank_environment
from pytest_ddp.survey import CallRecord, Calls, GroupCount, Standing, TellCalls
from pytest_ddp.verdict import subtests

_GRACE = 2.0
"""Seconds that ranks may go on after another one has failed."""
_CALLS_LIMIT = 2.0
"""Seconds that idle ranks are given to tell their collectives; it takes milliseconds."""

ReadReport: TypeAlias = Callable[[Json], pytest.TestReport | None]
Tell: TypeAlias = Callable[[int, Warned | Finished], None]


@dataclass(frozen=True, slots=True)
class Order:
    """A planned test with what only the pytest session knows about it."""

    plan: LaunchPlan
    item: pytest.Item
    next_nodeids: tuple[str | None, ...]
    """The next test of each rank."""
    next_is_known: bool
    tmp_path: str | None
    live: LiveLine


class Run:
    """One attempt at one test."""

    def __init__(
        self, launcher: Launcher, read_report: ReadReport, tell: Tell, order: Order, test: int
    ) -> None:
        self._launcher = launcher
        self._read_report = read_report
        self._tell = tell
        self._order = order
        self._test = test
        self._plan = order.plan
        self._timed_out = False
        self._first_failure: float | None = None
        self._wall = time.time()
        self._began = time.monotonic()
        self._hang: Hang | None = None
        self._mismatch = ""
        self._parting = ""
        self._suspicions: tuple[str, ...] = ()
        self.parts: list[Part] = []
        self._by_process: dict[RankProcess, Part] = {}

    # ------------------------------------------------------------------ start

    def start(self, group: GroupPlan | None) -> None:
        """Tell every rank to run the test."""
        plan = self._plan
        for rank in range(plan.world_size):
            process = self._launcher.rank(rank)
            assert process is not None
            self.parts.append(Part(process))
        self._by_process = {part.process: part for part in self.parts}
        self._exchanges = Exchanges([part.process for part in self.parts])
        self._prober = Prober(self._test, [part.process for part in self.parts])
        self._oom_kills = count_oom_kills()
        self._wall, self._began = time.time(), time.monotonic()
        with listen(plan.world_size) as listening:
            port = listening.getsockname()[1]
            for rank, part in enumerate(self.parts):
                part.process.files.begin()
                part.process.group = group
                serves = (listening.fileno(),) if rank == 0 else ()
                part.process.send(self._run_test(rank, group, port), serves)

    def _run_test(self, rank: int, group: GroupPlan | None, port: int) -> RunTest:
        plan, order = self._plan, self._order
        run_id = f"pytest-ddp-{self._launcher.directory.name}-{self._test}"
        return RunTest(
            test=self._test,
            nodeid=plan.nodeid,
            next_nodeid=order.next_nodeids[rank],
            next_is_known=order.next_is_known,
            rank=rank,
            world_size=plan.world_size,
            backend=plan.backend,
            device_index=None if plan.devices is None else plan.devices[rank],
            group=group,
            env=rank_environment(rank, plan.world_size, port, run_id) | plan.env,
            seed=plan.seeds[rank],
            shared_seed=plan.seeds[0],
            tmp_path=order.tmp_path,
            serve_store=rank == 0,
        )

    # ------------------------------------------------------------------ the wait loop

    def supervise(self) -> None:
        """Wait until every rank has ended its part, or has been stopped."""
        live = self._order.live
        live.begin(self._order.item.name)
        try:
            self._wait(live)
        finally:
            live.erase()

    def _wait(self, live: LiveLine) -> None:
        while self._open():
            left = self._deadline() - time.monotonic()
            if left <= 0 or self._hang is not None:
                self._timed_out = self._first_failure is None and self._hang is None
                if self._hang is not None:
                    self._explain(self._prober.counts())
                self._stop(self._open())
                return
            self._prober.probe()
            live.show({p.process.rank: doing_of(p.ending, p.standing) for p in self.parts})
            wait = min(left, self._prober.due_in(), live.due_in())
            for process, message in self._launcher.poll(wait):
                if (part := self._by_process.get(process)) is not None:
                    self._take(part, message)

    def _open(self) -> list[Part]:
        return [part for part in self.parts if part.ending is None]

    def _deadline(self) -> float:
        end = self._began + self._plan.timeout
        if self._first_failure is not None:
            end = min(end, self._first_failure + self._grace())
        return end

    def _grace(self) -> float:
        # Where one rank could not begin, the others wait in the set-up of the group.
        hopeless = any(part.ending is Ending.NOT_BEGUN for part in self.parts)
        return 0.1 if hopeless else _GRACE

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _take(self, part: Part, message: FromRank | Gone) -> None:
        match message:
            case Gone():
                part.end(Ending.EXITED, self._now())
            case Warned() | Finished():
                self._tell(part.process.rank, message)
            case RankReady():
                """It was waited for already."""
            case _ if message.test != self._test:
                """Something late from the test before."""
            case Standing():
                part.standing = message
                ended = {part.process.rank for part in self.parts if part.ending is not None}
                self._hang = self._prober.take(part.process.rank, message, ended) or self._hang
                return
            case Calls():
                raise AssertionError("nobody asked for calls while the test ran")
            case Began():
                part.began, part.process.test = True, self._plan.nodeid
                if message.waits and all(part.began for part in self.parts):
                    self._go()
            case NotBegun():
                part.problem, part.infrastructure = message.problem, message.infrastructure
                part.end(Ending.NOT_BEGUN, self._now())
            case PhaseReported():
                self._take_report(part, message)
            case Done():
                part.done = message
                part.end(Ending.DONE, self._now())
            case Exchange():
                self._exchanges.arrive(part.process, message)
        self._prober.hear()
        if part.ending is not None:
            self._exchanges.leave(part.process, part.ending.value)
        if self._first_failure is None and part.failed:
            self._first_failure = time.monotonic()

    def _go(self) -> None:
        for part in self.parts:
            part.process.send(Go(self._test))

    def _take_report(self, part: Part, message: PhaseReported) -> None:
        report = self._read_report(message.report)
        if report is None:
            return
        phase = Phase(report.when)
        known = part.reports.get(phase)
        if known is not None and known.report.failed:
            subtests.join(known.report, report)
        else:
            part.reports[phase] = TimedReport(report, self._now())

    # ------------------------------------------------------------------ comparing

    def compare(self) -> None:
        """Compare the ranks' collectives, once all of them have ended well."""
        counts = self._counts()
        wanted = self._plan.check_collectives and len(counts) == len(self.parts)
        if not (wanted and compare.need_calls(counts)):
            return
        calls = self._ask_for_calls()
        self._mismatch = compare.difference(counts, calls)
        self._suspicions = tuple(compare.suspicions(counts, calls))

    def _explain(self, counts: dict[int, tuple[GroupCount, ...]]) -> None:
        """Find where the ranks of a hang parted: the cause may lie before the wait."""
        if compare.need_calls(counts):
            calls = self._ask_for_calls()
            self._parting = compare.difference(counts, calls, sides=2)
            self._suspicions = tuple(compare.suspicions(counts, calls))

    def _ask_for_calls(self) -> dict[int, tuple[CallRecord, ...]]:
        asked = [part for part in self.parts if not part.process.gone]
        for part in asked:
            part.process.send(TellCalls(self._test))
        deadline = time.monotonic() + _CALLS_LIMIT
        while any(part.calls is None for part in asked):
            if (left := deadline - time.monotonic()) <= 0:
                break
            for process, message in self._launcher.poll(left):
                if isinstance(message, Calls):
                    self._by_process[process].calls = message
        return {
            part.process.rank: part.calls.calls for part in self.parts if part.calls is not None
        }

    # ------------------------------------------------------------------ stopping

    def _stop(self, parts: list[Part]) -> None:
        stacks = ends.ask_for_stacks(self._launcher, [part.process for part in parts])
        for part in parts:
            part.stacks = stacks[part.process]
            part.end(Ending.STOPPED, self._now())
            self._launcher.kill(part.process)
        ends.wait_for_ends(self._launcher, [part.process for part in parts])

    def interrupt(self) -> None:
        """Pass Ctrl-C on to the ranks that still work."""
        for part in self._open():
            part.process.signal(signal.SIGINT)

    # ------------------------------------------------------------------ the end

    def is_worth_a_retry(self) -> bool:
        """True if it went wrong before any code of the test.

        In the set-up of the group, or with a warm rank that was dying when the test came.
        """
        return not any(part.began for part in self.parts) and any(
            part.infrastructure or part.died_before for part in self.parts
        )

    def is_out_of_step(self) -> bool:
        """True if the ranks that ended well issued different collectives on some group."""
        return compare.out_of_step(self._counts())

    def _counts(self) -> dict[int, tuple[GroupCount, ...]]:
        return {part.process.rank: part.done.counts for part in self.parts if part.done is not None}

    def tie_fixtures(self) -> None:
        """Note on all ranks that fixtures of some belong to the group of the test."""
        done = [part.done for part in self.parts]
        if any(end is not None and end.tied for end in done):
            for part in self.parts:
                part.process.tied_to = part.process.group
        elif None not in done:
            for part in self.parts:
                part.process.tied_to = None

    def outcome(self, notes: tuple[str, ...]) -> RunOutcome:
        item = self._order.item
        failed = any(part.failed for part in self.parts)
        return RunOutcome(
            nodeid=item.nodeid,
            location=item.location,
            keywords=dict.fromkeys(item.keywords, 1),
            backend=self._plan.backend,
            ranks=tuple(part.outcome() for part in self.parts),
            check_collectives=self._plan.check_collectives,
            start=self._wall,
            duration=self._now(),
            began=self._began,
            timeout=self._plan.timeout if self._timed_out else None,
            hang=self._hang,
            mismatch=self._mismatch,
            suspicions=self._suspicions,
            oom=count_oom_kills().since(self._oom_kills) if failed else "",
            notes=tuple(filter(None, (*notes, self._parting, *self._suspicions))),
        )
