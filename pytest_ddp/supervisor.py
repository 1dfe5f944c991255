"""Run tests on ranks: bring ranks up, attempt a test, replace what it left in doubt.

What an attempt saw becomes a :class:`RunOutcome`; what that means is the merge's matter.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from pytest_ddp import ends
from pytest_ddp.launcher import HostDiedError, Launcher, NoRankError, RankProcess
from pytest_ddp.outcome import RunOutcome
from pytest_ddp.plan import LaunchPlan
from pytest_ddp.protocol import GroupPlan
from pytest_ddp.run import Order, ReadReport, Run, Tell

_START_LIMIT = 120.0
"""Seconds for host and ranks to come up; beyond it something is broken."""
_TEARDOWN_LIMIT = 10.0
"""Seconds for the wide fixtures of a rank that is retired."""


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
            note = "The ranks could not begin at the first try; this is the second."
            outcome, _ = self._attempt(order, (note,))
        return outcome

    def prestart(self, ranks: Iterable[int]) -> None:
        """Ask for ranks ahead of need; they come up while others work."""
        for rank in ranks:
            if self._launcher.rank(rank) is None:
                self._launcher.start(rank)

    # ------------------------------------------------------------------ one attempt

    def _attempt(self, order: Order, notes: tuple[str, ...]) -> tuple[RunOutcome, bool]:
        run = Run(self._launcher, self._read_report, self._tell, order, self._next_test())
        if order.plan.isolate:
            self._replace(range(order.plan.world_size))
        self._bring_up(order.plan.world_size)
        group = self._group_plan(order.plan)
        self._replace_tied(order.plan.world_size, group)
        run.start(group)
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
        self._launcher.poll(0)
        self.prestart(range(world_size))
        deadline = time.monotonic() + _START_LIMIT
        while not all(self._is_ready(rank) for rank in range(world_size)):
            if time.monotonic() > deadline:
                raise HostDiedError(f"no rank came up within {_START_LIMIT:.0f} s")
            self._launcher.poll(deadline - time.monotonic())

    def _is_ready(self, rank: int) -> bool:
        process = self._launcher.rank(rank)
        assert process is not None
        if process.gone and process.test:
            self._lose_between_tests(process)
            self._launcher.start(rank)
            return False
        if process.gone:
            words = process.files.stacks() or self._launcher.last_words()
            self._launcher.forget(process)
            code = process.returncode
            raise NoRankError(f"rank {rank} ended with exit code {code} at its start:\n{words}")
        return process.ready and process.pid is not None

    def _lose_between_tests(self, process: RankProcess) -> None:
        """Neither the last test's verdict nor the next one's can tell of this death."""
        self._tell(process.rank, ends.between_tests(process))
        self._launcher.forget(process)

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

    def _clean_up(self, run: Run) -> None:
        run.tie_fixtures()
        out_of_step = run.is_out_of_step()
        retired = []
        for part in run.parts:
            done = part.done
            if part.died_before and run.is_worth_a_retry():
                self._lose_between_tests(part.process)
            elif part.process.gone:
                self._launcher.forget(part.process)
            elif part.infrastructure or (done is not None and done.rank_doubt):
                # torch may keep traces of a group that it could not build.
                retired.append(part.process)
            elif done is None or done.group_doubt is not None or out_of_step:
                part.process.group = None
        self._retire(retired)

    def _replace(self, ranks: Iterable[int]) -> None:
        processes = (self._launcher.rank(rank) for rank in ranks)
        self._retire([process for process in processes if process is not None])

    def _replace_tied(self, world_size: int, group: GroupPlan | None) -> None:
        """Replace ranks that have fixtures of another process group than the next one.

        Such a fixture needs all ranks for its set-up, also those that have one already.
        """
        processes = map(self._launcher.rank, range(world_size))
        tied = [p for p in processes if p is not None and p.tied_to not in (None, group)]
        if tied:
            self._retire(tied)
            self._bring_up(world_size)

    def _retire(self, processes: list[RankProcess]) -> None:
        """End ranks that are alive and well as far as one knows: they may tear down first.

        Fixtures of one process group may communicate in their teardown: they end together.
        """
        groups = {process.tied_to for process in processes} - {None}
        others = [process for process in self._launcher.ranks() if process not in processes]
        processes = [*processes, *(other for other in others if other.tied_to in groups)]
        for rank, message in ends.finish(self._launcher, processes, _TEARDOWN_LIMIT):
            self._tell(rank, message)
        for process in processes:
            if not process.gone:
                self._launcher.kill(process)
        ends.wait_for_ends(self._launcher, processes)
        for process in processes:
            self._launcher.forget(process)
