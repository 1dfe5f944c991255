"""Run one test on its ranks and account for every one of them.

One wait loop hears all ranks, their ends, and the clock; nothing here sleeps or asks
twice. What it saw becomes a :class:`RunOutcome`; what that means is the merge's matter.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import pytest

from pytest_ddp import compare
from pytest_ddp.exchanges import Exchanges
from pytest_ddp.launcher import Gone, HostDiedError, Launcher, RankProcess
from pytest_ddp.outcome import Ending, Hang, RankOutcome, RunOutcome, TimedReport
from pytest_ddp.plan import LaunchPlan
from pytest_ddp.prober import Prober
from pytest_ddp.protocol import (
    Began,
    CallRecord,
    Calls,
    Done,
    Exchange,
    Finished,
    FromRank,
    Go,
    GroupCount,
    GroupPlan,
    Json,
    NotBegun,
    Phase,
    PhaseReported,
    RankReady,
    RunTest,
    Standing,
    TellCalls,
    Warned,
)
from pytest_ddp.rendezvous import listen, rank_environment

_START_LIMIT = 120.0
"""Seconds for host and ranks to come up; beyond it something is broken."""
_GRACE = 2.0
"""Seconds that ranks may go on after another one has failed."""
_STACK_LIMIT = 0.5
"""Seconds that a rank is given to write its stacks; it needs about a millisecond."""
_CALLS_LIMIT = 2.0
"""Seconds that idle ranks are given to tell their collectives; it takes milliseconds."""
_KILL_LIMIT = 5.0
_TEARDOWN_LIMIT = 10.0
"""Seconds for the wide fixtures of a rank that is retired."""

ReadReport: TypeAlias = Callable[[Json], pytest.TestReport | None]
Tell: TypeAlias = Callable[[Warned | Finished], None]


@dataclass(frozen=True, slots=True)
class Order:
    """A planned test with what only the pytest session knows about it."""

    plan: LaunchPlan
    item: pytest.Item
    next_nodeids: tuple[str | None, ...]
    """The next test of each rank."""
    next_is_known: bool
    tmp_path: str | None


class _Part:
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
            problem=self.problem,
            done=self.done,
        )


class Supervisor:
    """Runs tests one after the other on the ranks of one launcher."""

    def __init__(self, launcher: Launcher, read_report: ReadReport, tell: Tell) -> None:
        self._launcher = launcher
        self._read_report = read_report
        self._tell = tell
        self._tests = 0
        self._stores = 0

    def run(self, order: Order) -> RunOutcome:
        """Run a test to its end, whatever its ranks do.

        Raises:
            HostDiedError: the host is gone.
            OrphanedError: so is xdist's main process.
        """
        outcome, retry = self._attempt(order, ())
        if retry:
            note = "The process group could not be built at the first try; this is the second."
            outcome, _ = self._attempt(order, (note,))
        return outcome

    def prestart(self, ranks: Iterable[int]) -> None:
        """Ask for ranks ahead of need; they come up while others work."""
        for rank in ranks:
            if self._launcher.rank(rank) is None:
                self._launcher.start(rank)

    # ------------------------------------------------------------------ one attempt

    def _attempt(self, order: Order, notes: tuple[str, ...]) -> tuple[RunOutcome, bool]:
        run = _Run(self._launcher, self._read_report, self._tell, order, self._next_test())
        if order.plan.isolate:
            self._replace(range(order.plan.world_size))
        self._bring_up(order.plan.world_size)
        run.start(self._group_plan(order.plan))
        try:
            run.supervise()
            run.compare()
        except KeyboardInterrupt:
            run.interrupt()
            raise
        outcome = run.outcome(notes)
        self._clean_up(run)
        return outcome, run.is_worth_a_retry() and not notes

    def _next_test(self) -> int:
        self._tests += 1
        return self._tests

    def _bring_up(self, world_size: int) -> None:
        self.prestart(range(world_size))
        deadline = time.monotonic() + _START_LIMIT
        while not all(self._is_ready(rank) for rank in range(world_size)):
            if time.monotonic() > deadline:
                raise HostDiedError(f"no rank came up within {_START_LIMIT:.0f} s")
            self._launcher.poll(deadline - time.monotonic())

    def _is_ready(self, rank: int) -> bool:
        process = self._launcher.rank(rank)
        assert process is not None
        if process.gone:
            words = process.stacks() or self._launcher.last_words()
            self._launcher.forget(process)
            code = process.returncode
            raise HostDiedError(f"rank {rank} ended with exit code {code} at its start\n{words}")
        return process.ready and process.pid is not None

    def _group_plan(self, plan: LaunchPlan) -> GroupPlan | None:
        """The group that all ranks hold already, or a new one."""
        if not plan.init:
            return None
        ranks = [self._launcher.rank(rank) for rank in range(plan.world_size)]
        held = {process.group for process in ranks if process is not None}
        if len(held) == 1 and (group := held.pop()) is not None:
            fits = group.backend is plan.backend and group.world_size == plan.world_size
            if fits and group.devices == plan.devices:
                return group
        self._stores += 1
        store = str(self._launcher.directory / f"store-{self._stores}")
        return GroupPlan(plan.backend, plan.world_size, plan.devices, store)

    def _clean_up(self, run: _Run) -> None:
        unequal = run.has_unequal_counts()
        retired = []
        for part in run.parts:
            done = part.done
            if part.process.gone:
                self._launcher.forget(part.process)
            elif part.infrastructure or (done is not None and done.rank_doubt):
                # torch may keep traces of a group that it could not build.
                retired.append(part.process)
            elif done is None or done.group_doubt is not None or unequal:
                part.process.group = None
        self._retire(retired)

    def _replace(self, ranks: Iterable[int]) -> None:
        processes = (self._launcher.rank(rank) for rank in ranks)
        self._retire([process for process in processes if process is not None])

    def _retire(self, processes: list[RankProcess]) -> None:
        """End ranks that are alive and well as far as one knows: they may tear down first."""
        for _, message in self._launcher.finish(processes, _TEARDOWN_LIMIT):
            if isinstance(message, Warned | Finished):
                self._tell(message)
        for process in processes:
            if not process.gone:
                self._launcher.kill(process)
        wait_for_ends(self._launcher, processes)
        for process in processes:
            self._launcher.forget(process)


def wait_for_ends(launcher: Launcher, processes: list[RankProcess]) -> None:
    """Wait until killed ranks are gone."""
    deadline = time.monotonic() + _KILL_LIMIT
    while not all(process.gone for process in processes):
        if (left := deadline - time.monotonic()) <= 0:
            raise HostDiedError("the host did not end a rank that it was told to kill")
        launcher.poll(left)


class _Run:
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
        self.parts: list[_Part] = []
        self._by_process: dict[RankProcess, _Part] = {}

    # ------------------------------------------------------------------ start

    def start(self, group: GroupPlan | None) -> None:
        """Tell every rank to run the test."""
        plan = self._plan
        for rank in range(plan.world_size):
            process = self._launcher.rank(rank)
            assert process is not None
            self.parts.append(_Part(process))
        self._by_process = {part.process: part for part in self.parts}
        self._exchanges = Exchanges([part.process for part in self.parts])
        self._prober = Prober(self._test, [part.process for part in self.parts])
        self._wall, self._began = time.time(), time.monotonic()
        with listen(plan.world_size) as listening:
            port = listening.getsockname()[1]
            for rank, part in enumerate(self.parts):
                part.process.begin()
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
            tmp_path=order.tmp_path,
            serve_store=rank == 0,
        )

    # ------------------------------------------------------------------ the wait loop

    def supervise(self) -> None:
        """Wait until every rank has ended its part, or has been stopped."""
        while self._open():
            left = self._deadline() - time.monotonic()
            if left <= 0 or self._hang is not None:
                self._timed_out = self._first_failure is None and self._hang is None
                if self._hang is not None:
                    self._explain(self._prober.counts())
                self._stop(self._open())
                return
            self._prober.probe()
            for process, message in self._launcher.poll(min(left, self._prober.due_in())):
                if (part := self._by_process.get(process)) is not None:
                    self._take(part, message)

    def _open(self) -> list[_Part]:
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

    def _take(self, part: _Part, message: FromRank | Gone) -> None:
        match message:
            case Gone():
                part.end(Ending.EXITED, self._now())
            case Warned() | Finished():
                self._tell(message)
            case RankReady():
                """It was waited for already."""
            case _ if message.test != self._test:
                """Something late from the test before."""
            case Standing():
                ended = {part.process.rank for part in self.parts if part.ending is not None}
                self._hang = self._prober.take(part.process.rank, message, ended) or self._hang
                return
            case Calls():
                raise AssertionError("nobody asked for calls while the test ran")
            case Began():
                part.began = True
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

    def _take_report(self, part: _Part, message: PhaseReported) -> None:
        report = self._read_report(message.report)
        if report is None:
            return
        phase = Phase(report.when)
        known = part.reports.get(phase)
        # A subtest that failed speaks for its phase.
        if known is None or not known.report.failed:
            part.reports[phase] = TimedReport(report, self._now())

    # ------------------------------------------------------------------ comparing

    def compare(self) -> None:
        """Compare the ranks' collectives, once all of them have ended well."""
        done = {part.process.rank: part.done for part in self.parts if part.done is not None}
        counts = {rank: end.counts for rank, end in done.items()}
        if len(done) < len(self.parts) or not compare.need_calls(counts):
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

    def _stop(self, parts: list[_Part]) -> None:
        for part in parts:
            part.process.signal(signal.SIGUSR1)
        self._wait_for_stacks(parts)
        for part in parts:
            part.end(Ending.STOPPED, self._now())
            self._launcher.kill(part.process)
        wait_for_ends(self._launcher, [part.process for part in parts])

    def _wait_for_stacks(self, parts: list[_Part]) -> None:
        deadline = time.monotonic() + _STACK_LIMIT
        while time.monotonic() < deadline:
            before = [part.stacks for part in parts]
            self._launcher.poll(0.02)
            for part in parts:
                part.stacks = part.process.stacks()
            if all(part.stacks for part in parts) and before == [part.stacks for part in parts]:
                return

    def interrupt(self) -> None:
        """Pass Ctrl-C on to the ranks that still work."""
        for part in self._open():
            part.process.signal(signal.SIGINT)

    # ------------------------------------------------------------------ the end

    def is_worth_a_retry(self) -> bool:
        """True if only the set-up of the process group failed, before any code of the test."""
        return any(part.infrastructure for part in self.parts) and not any(
            part.began for part in self.parts
        )

    def has_unequal_counts(self) -> bool:
        return len({part.done.counts for part in self.parts if part.done is not None}) > 1

    def outcome(self, notes: tuple[str, ...]) -> RunOutcome:
        item = self._order.item
        return RunOutcome(
            nodeid=item.nodeid,
            location=item.location,
            keywords=dict.fromkeys(item.keywords, 1),
            backend=self._plan.backend,
            ranks=tuple(part.outcome() for part in self.parts),
            start=self._wall,
            duration=self._now(),
            timeout=self._plan.timeout if self._timed_out else None,
            hang=self._hang,
            mismatch=self._mismatch,
            suspicions=self._suspicions,
            notes=tuple(filter(None, (*notes, self._parting, *self._suspicions))),
        )
