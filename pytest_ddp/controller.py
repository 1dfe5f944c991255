"""One controller per pytest process: from an item to its merged reports."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_ddp import ends, gpus
from pytest_ddp.launcher import HostDiedError, Launcher, NoRankError, OrphanedError
from pytest_ddp.live import LiveLine, terminal_of
from pytest_ddp.marks import MARK
from pytest_ddp.messages import Messages
from pytest_ddp.options import Options, StartMethod
from pytest_ddp.outcome import RunOutcome
from pytest_ddp.plan import LaunchPlan, make_plan
from pytest_ddp.protocol import Json, Session
from pytest_ddp.run import Order
from pytest_ddp.supervisor import Supervisor
from pytest_ddp.unrun import failed_without_ranks, skipped_without_ranks
from pytest_ddp.verdict import records, subtests
from pytest_ddp.verdict.merge import judge

_TIMEOUT = pytest.StashKey[float]()
"""What pytest-timeout wants of a test, in seconds."""

_LAST_TEARDOWN = 60.0
"""Seconds for session fixtures of all ranks at a normal end."""
_INTERRUPTED_TEARDOWN = 1.0


class Controller:
    """Starts what a session with ddp tests needs, runs them, and ends it."""

    def __init__(self, config: pytest.Config, options: Options) -> None:
        self._config = config
        self._options = options
        self._launcher: Launcher | None = None
        self._supervisor: Supervisor | None = None
        self._ddp_items: list[pytest.Item] = []
        self._positions: dict[pytest.Item, int] = {}
        self._plans: dict[pytest.Item, LaunchPlan] = {}
        self._start_method = options.start_method
        self._hopeless: str | None = None
        self.exit_request: tuple[str, int | None] | None = None
        """Reason and return code of a ``pytest.exit`` that the last test called for."""
        self._messages = Messages(config)
        self._live = LiveLine(terminal_of(config))

    @property
    def problems(self) -> list[str]:
        """Teardowns that failed when no report could carry them any more."""
        return self._messages.problems

    # ------------------------------------------------------------------ collection

    def warm_up(self) -> None:
        """Start the host at the first sight of a ddp test, behind the rest of collection."""
        if self._launcher is None and not self._config.option.collectonly:
            self._start_host()

    def collected(self, items: list[pytest.Item]) -> None:
        """Collection is over: tell the host what it has to collect."""
        self._ddp_items = [item for item in items if MARK in item.stash]
        self._positions = {item: position for position, item in enumerate(self._ddp_items)}
        if self._launcher is not None and self._ddp_items:
            self._launcher.collect(sorted({str(item.path) for item in self._ddp_items}))
            self._prestart()

    def _prestart(self) -> None:
        with contextlib.suppress(pytest.UsageError):
            plan = self._plan(self._ddp_items[0])
            if plan.skip is None and self._supervisor is not None:
                self._supervisor.prestart(range(plan.world_size))

    def _start_host(self) -> None:
        config = self._config
        basetemp: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        verbose = config.option.capture == "no"
        session = Session(
            spawns=self._start_method is StartMethod.SPAWN,
            args=tuple(_invocation(config)),
            plugins=tuple(_named(config.invocation_params.plugins or ())),
            worker=_worker_id(config),
            basetemp=str(basetemp),
            verbose_output=verbose,
            traces=self._options.trace is not None,
        )
        self._launcher = Launcher(session, quiet=not verbose)
        if hasattr(config, "workerinput"):
            self._launcher.watch_parent()
        self._supervisor = Supervisor(self._launcher, self._read_report, self._messages.tell)

    def _restart_host(self) -> None:
        self.close()
        self._start_host()
        assert self._launcher is not None
        self._launcher.collect(sorted({str(item.path) for item in self._ddp_items}))

    # ------------------------------------------------------------------ one test

    def run(self, item: pytest.Item, next_item: pytest.Item | None) -> list[pytest.TestReport]:
        """Run a ddp test on its ranks; its reports, one for each phase."""
        plan = self._plan(item)
        if plan.skip is not None:
            return skipped_without_ranks(item, plan.skip)
        if self._hopeless is not None:
            return failed_without_ranks(item, self._hopeless)
        try:
            with self._tmp_path(item, plan) as (tmp_path, results):
                outcome = self._run_on_ranks(item, next_item, plan, tmp_path)
                results += self._results(outcome)
        except HostDiedError as death:
            return self._after_death_of_host(item, str(death))
        except gpus.LeaseError as problem:
            return failed_without_ranks(item, str(problem))
        except NoRankError as problem:
            return self._without_rank(item, str(problem))
        except OrphanedError:
            # Nobody is left to report to, and execnet would take seconds to notice.
            self.close()
            os._exit(3)
        self._messages.after_test(outcome, results)
        self._write_trace(outcome, results)
        return results

    def _write_trace(self, outcome: RunOutcome, reports: list[pytest.TestReport]) -> None:
        if (directory := self._options.trace) is None:
            return
        from pytest_ddp.trace import files  # noqa: PLC0415

        try:
            files.write(directory, outcome, reports)
        except OSError as error:
            self._messages.warn(f"--ddp-trace={directory}: no trace could be written: {error}")

    def _results(self, outcome: RunOutcome) -> list[pytest.TestReport]:
        exits = [
            rank.done
            for rank in outcome.ranks
            if rank.done is not None and rank.done.exit_reason is not None
        ]
        if not exits:
            return self._merged(outcome)
        self.exit_request = exits[0].exit_reason or "", exits[0].exit_code
        if not any(t.report.failed for rank in outcome.ranks for t in rank.reports.values()):
            # As in plain pytest, the test that ends the session has no result.
            return []
        self.exit_request = self.exit_request[0], exits[0].exit_code or None
        return self._merged(outcome)

    def _merged(self, outcome: RunOutcome) -> list[pytest.TestReport]:
        merged = judge(outcome, self._options.output)
        if (directory := self._options.diagnosis) is not None:
            try:
                records.keep(directory, outcome, merged.diagnoses)
            except OSError as error:
                self._messages.warn(f"--ddp-diagnosis={directory}: {error}")
        return merged.reports

    def _run_on_ranks(
        self,
        item: pytest.Item,
        next_item: pytest.Item | None,
        plan: LaunchPlan,
        tmp_path: Path | None,
    ) -> RunOutcome:
        self._fall_back_to_spawn()
        if self._launcher is None:
            self._restart_host()
        assert self._supervisor is not None
        next_nodeids, known = self._next_tests(item, next_item, plan.world_size)
        with self._devices(item, plan) as placed:
            shared = None if tmp_path is None else str(tmp_path)
            order = Order(placed, item, next_nodeids, known, shared, self._live)
            return self._supervisor.run(order)

    @contextlib.contextmanager
    def _devices(self, item: pytest.Item, plan: LaunchPlan) -> Iterator[LaunchPlan]:
        if plan.devices is None:
            yield plan
            return
        with gpus.lease(len(plan.devices), limit=plan.timeout, holder=item.nodeid) as leased:
            yield dataclasses.replace(plan, devices=leased)

    def set_timeout(self, item: pytest.Item, seconds: float) -> None:
        """Bound a test by pytest-timeout's word, if that is shorter than our own."""
        item.stash[_TIMEOUT] = seconds

    def _plan(self, item: pytest.Item) -> LaunchPlan:
        plan = self._planned(item)
        timeout = item.stash.get(_TIMEOUT, None)
        if timeout is not None:
            plan = dataclasses.replace(plan, timeout=min(timeout, plan.timeout))
        return plan

    def _planned(self, item: pytest.Item) -> LaunchPlan:
        # Once for an item, which is looked at for each rank of the tests before it too.
        if (plan := self._plans.get(item)) is None:
            plan = self._plans[item] = make_plan(item, item.stash[MARK], self._options, self._gpus)
        return plan

    @functools.cached_property
    def _gpus(self) -> int:
        return gpus.count_gpus()

    def _next_tests(
        self, item: pytest.Item, next_item: pytest.Item | None, world_size: int
    ) -> tuple[tuple[str | None, ...], bool]:
        """The next test of each rank, and whether a None among them means "none"."""
        if hasattr(self._config, "workerinput"):
            # An xdist worker knows one item ahead.
            following = [next_item] if next_item is not None and MARK in next_item.stash else []
            known = next_item is None
        else:
            following = self._ddp_items[self._positions[item] + 1 :] if next_item else []
            known = True
        return tuple(self._next_on(rank, following) for rank in range(world_size)), known

    def _next_on(self, rank: int, following: list[pytest.Item]) -> str | None:
        for item in following:
            plan = self._plan(item)
            if plan.skip is None and plan.world_size > rank:
                return item.nodeid
        return None

    @contextlib.contextmanager
    def _tmp_path(
        self, item: pytest.Item, plan: LaunchPlan
    ) -> Iterator[tuple[Path | None, list[pytest.TestReport]]]:
        """The directory that the test's ranks share, kept as pytest's policy says."""
        reports: list[pytest.TestReport] = []
        if not plan.tmp_path:
            yield None, reports
            return
        factory = self._config._tmp_path_factory  # type: ignore[attr-defined]
        directory: Path = factory.mktemp(re.sub(r"\W", "_", item.name)[:30], numbered=True)
        yield directory, reports
        policy = factory._retention_policy
        passed = bool(reports) and all(report.passed for report in reports)
        if policy == "none" or (policy == "failed" and passed):
            shutil.rmtree(directory, ignore_errors=True)

    def _read_report(self, data: Json) -> pytest.TestReport | None:
        hook = self._config.hook
        report: Any = hook.pytest_report_from_serializable(config=self._config, data=data)
        if not isinstance(report, pytest.TestReport):
            return None
        if type(report) is pytest.TestReport:
            return report
        return subtests.of_phase(report)

    # ------------------------------------------------------------------ trouble and the end

    def _fall_back_to_spawn(self) -> None:
        """Spawn where the collected session must not be forked."""
        launcher = self._launcher
        if launcher is None or self._start_method is StartMethod.SPAWN:
            return
        launcher.wait_until_ready()
        problem = launcher.ready.fork_problem if launcher.ready else None
        if problem is not None:
            self._messages.warn(
                f"ranks are spawned, not forked: {problem}. Each rank now takes seconds to start. "
                "Move that work into a fixture or a test, or say --ddp-start-method=spawn."
            )
            self._start_method = StartMethod.SPAWN
            self._restart_host()

    def _after_death_of_host(self, item: pytest.Item, words: str) -> list[pytest.TestReport]:
        launcher = self._launcher
        assert launcher is not None
        collecting = launcher.ready is None
        code = launcher.returncode()
        self.close()
        doing = "while it collected" if collecting else f"while {item.nodeid} ran"
        text = f"the host process of the ranks died {doing} (exit code {code})"
        if collecting:
            # It would do so again for every test.
            self._hopeless = f"{text}; see {item.nodeid}."
        last = words.splitlines()[-1] if words else "it said nothing"
        return failed_without_ranks(item, f"{text}: {last}\n\n{words}")

    def _without_rank(self, item: pytest.Item, problem: str) -> list[pytest.TestReport]:
        if self._launcher is not None and not self._launcher.had_rank:
            # It would be so again for every test.
            self._hopeless = f"no rank can be started; see {item.nodeid}."
        last = problem.rstrip().rpartition("\n")[2]
        return failed_without_ranks(item, f"no rank can be started: {last}\n\n{problem}")

    def finish(self, *, interrupted: bool) -> None:
        """Let the ranks tear down what is still up, then end everything."""
        if self._launcher is None:
            return
        limit = _INTERRUPTED_TEARDOWN if interrupted else _LAST_TEARDOWN
        with contextlib.suppress(HostDiedError, OrphanedError, KeyboardInterrupt):
            ranks = self._launcher.ranks()
            said = ends.finish(self._launcher, ranks, limit, explain=not interrupted)
            for rank, message in said:
                self._messages.tell(rank, message)
        self.close()

    def close(self) -> None:
        """End host and ranks at once."""
        launcher, self._launcher, self._supervisor = self._launcher, None, None
        if launcher is not None:
            launcher.close()


def _invocation(config: pytest.Config) -> list[str]:
    worker = getattr(config, "workerinput", None)
    if worker is not None and "ddp_invocation" in worker:
        return list(worker["ddp_invocation"])
    return [str(argument) for argument in config.invocation_params.args]


def _worker_id(config: pytest.Config) -> str:
    worker: dict[str, str] = getattr(config, "workerinput", {})
    return worker.get("workerid", "ddp")


def _named(plugins: Iterable[object]) -> Iterator[str]:
    # A plugin object cannot follow into another process.
    return (plugin for plugin in plugins if isinstance(plugin, str))
