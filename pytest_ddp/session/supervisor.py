"""Run tests on ranks: start ranks, attempt a test, replace ranks and groups that it left in doubt.

An attempt is recorded as a :class:`RunOutcome`; :mod:`pytest_ddp.verdict.merge` decides on it.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable

import pytest

from pytest_ddp.launch.launcher import Launcher, NoRankError
from pytest_ddp.launch.rank_process import RankProcess
from pytest_ddp.launch.rendezvous import Rendezvous
from pytest_ddp.outcome import stack_dumps
from pytest_ddp.outcome.outcome import Ending, Expiry, RunOutcome, ranks_text
from pytest_ddp.protocol.host_messages import World
from pytest_ddp.protocol.messages import Finished
from pytest_ddp.session import ends
from pytest_ddp.session.report_reader import Reader
from pytest_ddp.session.run import OnMessage, Run
from pytest_ddp.session.run_requests import RunRequest, start_limit
from pytest_ddp.system import tempfiles
from pytest_ddp.system.machine import OomKillWatch
from pytest_ddp.system.stdlib import time
from pytest_ddp.verdict.rank_failure import exit_text, problem_line
from pytest_ddp.verdict.text import rows_of

# ------------------------------------------------------------------
# What the ranks of a test were doing when Ctrl-C, or the end of a CI job, interrupted it.
#
# Often that test is the reason. pytest itself shows the line at which its own process was
# interrupted, which is a line of the plugin for a ddp test.

INTERRUPTED = pytest.StashKey[str]()
"""The key, in pytest's configuration, of the text for the end of the session."""


def keep_snapshot(item: pytest.Item, run: Run) -> None:
    """Keep for the end of the session what the ranks do now; takes 0.1 s, at most 2 s."""
    # No error here may hide the interrupt.
    with contextlib.suppress(Exception):
        item.config.stash[INTERRUPTED] = describe_interrupted(item.nodeid, *run.look())


def describe_interrupted(nodeid: str, seconds: float, look: Expiry) -> str:
    """The test, and a row for each of its ranks."""
    return "\n".join([f"{nodeid} was interrupted after {seconds:.1f} s", *rows_of(look.table)])


# Overview
#
# A test runs on the pool of its world: one process for each rank, kept from test to test with its
# process group, because to fork a rank and to build a group takes longer than most tests. Reuse is
# only right while no test can notice what ran before it. `Supervisor._clean_up` decides that after
# each attempt, from what ranks report in `Done` and from what `Run` has seen of all of them.
#
# One rank, a `RankProcess` of the pool:
#
#   state           moved by                                        next state
#   no process      `prestart`                                      starting
#   starting        `RankReady`: `_is_up`                           idle, without a group
#                   its death: `_bury`                              none: `NoRankError`
#                   the limit: `_hang_at_start` kills it            none: `NoRankError`
#   idle            `Run.start`                                     running
#                   its death: `_bury` warns, `_lose` forgets it    no process
#                   `_make_room`, `isolate`, `_has_other_state`     retired
#   running         `_clean_up`, by the first row that holds:
#                     `gone`                                        lost
#                     `retryable`, `Done.rank_doubt`,
#                     `Done.irreversible`                                  retired
#                     no `Done`, `Done.group_doubt`,
#                     `is_out_of_step`                              idle, without a group
#                     else                                          idle, with its group
#   lost            `_lose`                                         no process
#   retired         `_retire`: `ends.finish` lets it tear down,
#                   `kill` what is left, `forget`                   no process
#
# Three rules widen this from a rank to its pool:
# - A group that is in doubt is rebuilt by all ranks, as `store` is None on one of them: `_store`
#   then names a new store.
# - If the group must be rebuilt while a fixture holds it (`RankProcess.holds_group`), the fixture's
#   objects are bound to the old one, so the whole pool is retired.
# - If ranks leave a pool whose fixtures need all ranks in their set-up (`holds_group`,
#   `needs_peers`), the others leave with them (`_with_peers`): a new rank would wait in that set-up
#   for ever.
#
# Order matters in three places. `_attempt` calls `catch_up` before `outcome`, so that the output of
# ranks is shown before the verdict. `_bring_up` buries the dead before it starts ranks, or
# `prestart` would count them as present. `_clean_up` comes after `outcome`, since `forget` closes
# the files of a rank.

_TEARDOWN_LIMIT = 10.0
"""Seconds for the wide fixtures and the exit handlers of a rank that is retired."""
_IDLE_RANKS = 16
"""How many ranks may wait in the pools of other worlds; each has some 15 MiB of its own, and
more with the modules that its tests import."""


class Supervisor:
    """Runs tests one after another on the ranks of one launcher, with a pool for each world."""

    def __init__(self, launcher: Launcher, reader: Reader, tell: OnMessage) -> None:
        self._launcher = launcher
        self._reader = reader
        self._tell = tell
        self._tests = 0
        self._stores = 0
        self._runs = 0
        self._oom = OomKillWatch()
        self._session = f"pytest-ddp-{uuid.uuid4().hex[:8]}"
        self._pools: dict[World, Rendezvous] = {}
        """Least recently used first."""

    def run(self, request: RunRequest) -> RunOutcome:
        """Run a test to its end, whatever its ranks do.

        Raises:
            HostDiedError: the host has died.
            OrphanedError: xdist's main process has died.
        """
        # One retry: earlier tests may have broken the ranks, and the second attempt gets new ones.
        outcome, retry = self._attempt(request, ())
        if retry:
            outcome, _ = self._attempt(request, (_why_again(outcome),))
        return outcome

    def prestart(self, world: World) -> None:
        """Start the missing ranks of a world, without waiting for them.

        Raises:
            NoRankError: this process may not open so many files.
        """
        known = {process.rank for process in self._launcher.pool(world)}
        missing = [rank for rank in range(world.world_size) if rank not in known]
        if missing and (problem := tempfiles.raise_limit(len(missing))):
            raise NoRankError(problem)
        rendezvous = self._pools.pop(world, None)
        if rendezvous is None:
            self._runs += 1
            run_id = f"{self._session}-{self._runs}"
            rendezvous = Rendezvous(world, run_id, self._launcher.new_port)
        self._pools[world] = rendezvous
        if 0 in missing:
            # The port's socket was served by the rank 0 that is gone.
            rendezvous.renew()
        environments = {rank: rendezvous.environment(rank) for rank in missing}
        serves = rendezvous.take() if world.keeps_group and 0 in missing else None
        for rank, environment in environments.items():
            taken = () if rank or serves is None else serves.descriptors
            self._launcher.start(world, rank, environment, taken)
        if serves is not None:
            serves.close()
            rendezvous.renew()

    def close(self) -> None:
        """Close the ports that no test has used."""
        for rendezvous in self._pools.values():
            rendezvous.close()

    # ------------------------------------------------------------------ one attempt

    def _attempt(self, request: RunRequest, notes: tuple[str, ...]) -> tuple[RunOutcome, bool]:
        world = request.plan.world
        test = self._next_test()
        run = Run(self._launcher, self._reader, self._tell, self._oom, request, test)
        alters = "" if request.planned is None else request.planned.alters
        if request.plan.isolate or self._has_other_state(world, request.plan.module_state, alters):
            self._retire(self._launcher.pool(world))
        self._bring_up(world, start_limit(request.plan.timeout))
        run.start(self._store(world), self._pools[world])
        try:
            run.supervise()
            run.compare()
            run.settle()
        except KeyboardInterrupt:
            try:
                keep_snapshot(request.item, run)
            finally:
                run.interrupt()
            raise
        finally:
            self._launcher.catch_up()
        outcome = run.outcome(notes)
        self._clean_up(run, world)
        return outcome, run.is_retryable() and not notes

    def _has_other_state(self, world: World, module_state: str, alters: str) -> bool:
        """Whether tests have left these ranks in a state that is not that of the next test."""
        return any(
            process.module_state not in ("", module_state) or process.altered not in ("", alters)
            for process in self._launcher.pool(world)
        )

    def _next_test(self) -> int:
        self._tests += 1
        return self._tests

    def _store(self, world: World) -> str | None:
        """The name of the store by which all ranks have a group already, else a new name."""
        if not world.init:
            return None
        held = {process.store for process in self._launcher.pool(world)}
        if len(held) == 1 and (store := held.pop()) is not None:
            return store
        self._stores += 1
        return f"store-{self._stores}"

    # ------------------------------------------------------------------ pools

    def _bring_up(self, world: World, limit: float) -> None:
        self._launcher.poll(0)
        self._bury(world)
        self._make_room(world)
        self.prestart(world)
        deadline = time.monotonic() + limit
        # A rank that dies at its start ends the loop by `_bury`, which raises; one that died idle,
        # and is noticed only now, is replaced and waited for like the others.
        while late := [each for each in self._launcher.pool(world) if not _is_up(each)]:
            if time.monotonic() > deadline:
                raise NoRankError(self._hang_at_start(late, limit))
            self._launcher.poll(deadline - time.monotonic())
            if self._bury(world):
                self.prestart(world)

    def _bury(self, world: World) -> bool:
        """Report and drop ranks that died idle; True if there were any.

        Such a death belongs to the verdict of neither the last test nor the next one.
        """
        dead = [process for process in self._launcher.pool(world) if process.gone]
        for process in dead:
            if not process.test:
                raise NoRankError(self._end_at_start(process))
            self._tell(process.rank, ends.explain_idle_death(process))
        self._lose(dead)
        return bool(dead)

    def _end_at_start(self, process: RankProcess) -> str:
        details = process.files.stacks() or self._launcher.host_output()
        assert process.returncode is not None
        self._launcher.forget(process)
        how = process.condemned or f"{exit_text(process.returncode)} at its start"
        end = f"rank {process.rank} {how}"
        return f"{end}:\n{details}" if details else end

    def _hang_at_start(self, late: list[RankProcess], seconds: float) -> str:
        stacks = ends.ask_for_stacks(self._launcher, late)
        for process in late:
            self._launcher.kill(process)
        ends.wait_for_ends(self._launcher, late)
        for process in late:
            self._launcher.forget(process)
        ranks = ranks_text(process.rank for process in late)
        if file := stack_dumps.imported_file(stacks[late[0]]):
            first = f"the import of {file} has not ended after {seconds:.0f} s on {ranks}"
        else:
            first = f"{ranks} did not come up within {seconds:.0f} s"
        return f"{first}:\n{stacks[late[0]] or self._launcher.host_output()}"

    def _make_room(self, world: World) -> None:
        """End the least recently used pools, and all that share a GPU with ``world``."""
        others = [other for other in self._pools if other != world]
        idle = sum(other.world_size for other in others)
        for other in others:
            if idle > _IDLE_RANKS or other.gpus & world.gpus:
                idle -= other.world_size
                self._retire(self._launcher.pool(other))
                self._pools.pop(other).close()

    def _clean_up(self, run: Run, world: World) -> None:
        if run.used_rendezvous():
            self._pools[world].renew()
        out_of_step = run.is_out_of_step()
        lost, retired, regroup = [], [], False
        for rank_run in run.rank_runs:
            done = rank_run.done
            if rank_run.process.gone:
                idle = rank_run.ending is Ending.DONE
                if idle or (rank_run.died_before and run.is_retryable()):
                    process = rank_run.process
                    self._tell(process.rank, ends.explain_idle_death(process))
                lost.append(rank_run.process)
            elif rank_run.retryable or (
                done is not None and (done.rank_doubt or done.irreversible)
            ):
                # After a failed set-up of the group, torch may keep parts of it.
                retired.append(rank_run.process)
            elif done is None or done.group_doubt is not None or out_of_step:
                rank_run.process.store = None
                regroup = True
        if regroup and any(process.holds_group for process in self._launcher.pool(world)):
            # Fixtures may hold a DDP model or a device mesh, which is useless without its group.
            retired = [process for process in self._launcher.pool(world) if not process.gone]
        self._lose(lost, retired, run.nodeid)

    def _lose(
        self, dead: list[RankProcess], retired: Iterable[RankProcess] = (), after: str = ""
    ) -> None:
        """Forget ranks that are dead, and retire some that live; both with their peers.

        Args:
            dead: their peers may miss them in a collective of their last teardown.
            retired: ranks that live.
            after: the test that has ended the former.
        """
        when = ""
        if dead and after:
            ranks = ranks_text(process.rank for process in dead)
            when = f"In the last teardown, after {after} had ended {ranks}:"
        for process in dead:
            self._launcher.forget(process)
        leaving = self._with_peers([*dead, *retired])
        self._retire([process for process in leaving if process not in dead], when)

    def _with_peers(self, leaving: list[RankProcess]) -> list[RankProcess]:
        """Return these ranks, and their whole pool if its fixtures need all ranks in their set-up.

        A new rank would set up its fixture alone, and wait for its peers for ever.
        """
        for world in {process.world for process in leaving}:
            pool = self._launcher.pool(world)
            if any(process.holds_group or process.needs_peers for process in (*leaving, *pool)):
                leaving = [*leaving, *(process for process in pool if process not in leaving)]
        return leaving

    def _retire(self, processes: list[RankProcess], when: str = "") -> None:
        """End ranks that are not known to be stuck: they may tear down first."""
        if not processes:
            return
        for rank, message in ends.finish(self._launcher, processes, _TEARDOWN_LIMIT):
            if when and isinstance(message, Finished) and message.problem:
                message = Finished(f"{when}\n\n{message.problem}")
            self._tell(rank, message)
        for process in processes:
            if not process.gone:
                self._launcher.kill(process)
        ends.wait_for_ends(self._launcher, processes)
        for process in processes:
            self._launcher.forget(process)


def _why_again(first: RunOutcome) -> str:
    """The note on a second attempt, with the first failure of the first one."""
    failed = [r for r in first.ranks if r.ending in (Ending.NOT_BEGUN, Ending.EXITED)]
    cause = min(failed, key=lambda r: r.at)
    why = problem_line(cause.problem) if cause.problem else exit_text(cause.returncode or 0)
    reason = f"(rank {cause.rank}: {why})"
    return f"The ranks could not begin at the first try {reason}; this is the second."


def _is_up(process: RankProcess) -> bool:
    return process.ready and process.pid is not None
