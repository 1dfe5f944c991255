"""The controller: one per pytest process, runs items on ranks and merges their reports."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pytest_ddp.launch import gpus
from pytest_ddp.launch.launcher import HostDiedError, Launcher, NoRankError, OrphanedError
from pytest_ddp.outcome import stack_dumps
from pytest_ddp.outcome.outcome import Finding, RunOutcome
from pytest_ddp.protocol.host_messages import Session
from pytest_ddp.session import ends, worker_settings
from pytest_ddp.session.display import Display, LiveLine, terminal_of
from pytest_ddp.session.measuring import CoverageOfRanks
from pytest_ddp.session.planned_runs import (
    ItemVerdict,
    PlannedRun,
    RunPlan,
    RunResult,
    add_durations,
    carry_out,
)
from pytest_ddp.session.report_reader import Reader
from pytest_ddp.session.run_requests import RunRequest, RunRequests
from pytest_ddp.session.supervisor import Supervisor
from pytest_ddp.session.synthetic_reports import (
    exception_of,
    failed_without_ranks,
    skipped_without_ranks,
)
from pytest_ddp.session.terminal import Terminal
from pytest_ddp.session.tmp_path import TmpPaths
from pytest_ddp.settings.options import Import, Options, StartMethod
from pytest_ddp.settings.plan import PLAN, LaunchPlan
from pytest_ddp.system import machine
from pytest_ddp.system.stdlib import os
from pytest_ddp.verdict import codes, diagnosis_files
from pytest_ddp.verdict.diagnosis import Diagnosis, is_doubtful
from pytest_ddp.verdict.merge import judge, with_subtests
from pytest_ddp.verdict.notices import AsideOfRank, Messages, SpawnedRanks
from pytest_ddp.verdict.paint import width_of
from pytest_ddp.verdict.rank_failure import exit_text

_LAST_TEARDOWN = 60.0
"""Seconds for the wide fixtures of all ranks at a normal end."""
_INTERRUPTED_TEARDOWN = 1.0
"""Seconds for the wide fixtures of all ranks after Ctrl-C, when a user waits."""
_LOST_WITH_HOST = (
    "{end} between two tests or after the last one, and the ranks with it: fixtures wider than a "
    "test were not torn down, exit handlers did not run.\n"
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a test, of which nothing has been shown yet."""

    reports: list[pytest.TestReport]
    outcome: RunOutcome | None = None
    """What was observed; None if the test did not run on ranks."""
    diagnoses: tuple[Diagnosis, ...] = ()
    problem: str = ""
    """Why the test could not run on ranks; empty if it could."""
    codes: tuple[str, ...] = ()
    """The codes of the attempt's failures."""


class Controller:
    """Starts what a session with ddp tests needs, runs them, and ends it."""

    def __init__(self, config: pytest.Config, options: Options) -> None:
        self._config = config
        self._options = options
        self._launcher: Launcher | None = None
        self._supervisor: Supervisor | None = None
        self._start_method = options.usable_start_method()
        self._fruitless = 0
        """Number of successive starts of a host after which no rank was ever ready."""
        self._hopeless: str | None = None
        """Why no test can run any more; None if tests can run."""
        self.exit_request: tuple[str, int | None] | None = None
        """Reason and return code of a ``pytest.exit`` in the last test."""
        self._diagnoses: tuple[Diagnosis, ...] = ()
        """The diagnoses of the last test."""
        self._messages = Messages(config)
        self._live = LiveLine(terminal_of(config))
        self._display = Display(config, self._live, self._messages.warn)
        self._terminal = Terminal(config, self._messages.warn)
        self.orders = RunRequests(config, options, self._live, self._terminal)
        self._coverage = CoverageOfRanks(config, self._messages.warn)

    @property
    def is_measured(self) -> bool:
        """Whether ranks leave data for a coverage report."""
        return self._coverage.measured is not None

    @property
    def problems(self) -> list[str]:
        """Problems that are in no report, such as teardowns that failed after the last test."""
        return self._messages.problems

    # ------------------------------------------------------------------ collection

    def warm_up(self) -> None:
        """Start the host, if there may be a ddp test; it starts while collection goes on.

        Raises:
            pytest.UsageError: an extension makes no launcher for this session.
        """
        if self._launcher is None and not self._config.option.collectonly:
            with contextlib.suppress(NoRankError):  # each test that needs ranks tries again
                self._start_host()

    def collected(self, items: list[pytest.Item]) -> None:
        """Collection is over: send the host the files with ddp tests, and start the first ranks."""
        self.orders.collected(items)
        if self.orders.items and hasattr(self._config, "workerinput"):
            # The terminal of an xdist worker is not shown, so the problems become warnings.
            for problem in machine.problems():
                self._messages.warn(problem)
        if self._launcher is not None and self.orders.items:
            self._send_collected(self._launcher)
            self._prestart()

    def _send_collected(self, launcher: Launcher) -> None:
        launcher.collected(worker_settings.collected_message(self._config, self.orders.items))

    def _prestart(self) -> None:
        if self._launcher is None or not self._launcher.is_local:
            return  # planning would wait for other machines
        # Problems are reported when the test runs.
        with contextlib.suppress(pytest.UsageError, NoRankError):
            plan = self.orders.plan(self.orders.items[0])
            if plan.skip is None and self._supervisor is not None:
                self._supervisor.prestart(plan.world)

    def _start_host(self) -> None:
        config = self._config
        session = worker_settings.session_message(
            config,
            self._options,
            spawns=self._start_method is StartMethod.SPAWN,
            basetemp=self._directories.base,
            coverage=self._coverage.measured,
        )
        self._launcher = self._new_launcher(session)
        if hasattr(config, "workerinput"):
            self._launcher.watch_parent()
        self._supervisor = Supervisor(self._launcher, Reader(config), self._messages.tell)

    def _new_launcher(self, session: Session) -> Launcher:
        given = {"config": self._config, "session": session, "display": self._display}
        launcher: Launcher | None = self._config.hook.pytest_ddp_make_launcher(**given)
        return launcher or Launcher(session, self._display)

    def _restart_host(self) -> None:
        self.close()
        self._start_host()
        assert self._launcher is not None
        self._send_collected(self._launcher)

    # ------------------------------------------------------------------ one test

    def run_plan(self, item: pytest.Item) -> RunPlan | None:
        """How often a plugin wants a test to run; None for once."""
        launch = None
        with contextlib.suppress(pytest.UsageError, NoRankError, HostDiedError):  # reported later
            launch = self.orders.plan(item)
        plan: RunPlan | None = self._config.hook.pytest_ddp_plan_runs(item=item, launch=launch)
        if plan is not None and not plan.reruns:
            self.orders.set_driven(item)
        return plan

    def run(
        self, item: pytest.Item, next_item: pytest.Item | None, plan: RunPlan | None
    ) -> list[pytest.TestReport]:
        """Run a ddp test on its ranks; returns its reports, one for each phase."""
        if plan is None:
            return self._shown(self._attempt(item, next_item))
        made: dict[RunResult, tuple[Attempt, list[AsideOfRank]]] = {}

        def run(planned: PlannedRun) -> RunResult:
            with self._messages.held() as asides:
                attempt = self._attempt(item, None, planned)
            sent = {} if attempt.outcome is None else _sent(attempt.outcome)
            result = RunResult(planned, tuple(attempt.reports), sent, attempt.codes)
            made[result] = attempt, asides
            return result

        verdict = carry_out(plan, run, lambda: self.exit_request is not None)
        others = [result for result in made if result is not verdict.result]
        return add_durations(self._of_verdict(item, verdict, made), others, item)

    def _of_verdict(
        self,
        item: pytest.Item,
        verdict: ItemVerdict,
        made: Mapping[RunResult, tuple[Attempt, list[AsideOfRank]]],
    ) -> list[pytest.TestReport]:
        """Show the run that counts, and nothing of the others."""
        if verdict.error:
            return self._shown(_failed(item, verdict.error))
        if verdict.skip or verdict.result is None:
            return self._shown(Attempt(skipped_without_ranks(item, verdict.skip)))
        attempt, asides = made[verdict.result]
        for rank, aside in asides:
            self._messages.tell(rank, aside)
        if verdict.heading and attempt.problem:
            attempt = _failed(item, f"{verdict.heading}\n\n{attempt.problem}")
        elif (verdict.heading or verdict.closing) and attempt.outcome is not None:
            outcome = replace(attempt.outcome, heading=verdict.heading, closing=verdict.closing)
            attempt = self._merged(outcome)
        return self._shown(attempt)

    def _attempt(
        self, item: pytest.Item, next_item: pytest.Item | None, planned: PlannedRun | None = None
    ) -> Attempt:
        test = item if planned is None else planned.item or item
        if not self.orders.is_ddp_test(test):
            return _failed(test, f"{test.nodeid} cannot run on ranks: it is no ddp test")
        try:
            test.stash[PLAN] = plan = self.orders.plan(item, planned)
            if plan.skip is not None:
                return Attempt(skipped_without_ranks(test, plan.skip))
            if self._hopeless is not None:
                return self._without_ranks(test, self._hopeless)
            tmp_path = self._directories.name(test)
            request = functools.partial(self.orders.order, test, next_item, planned)
            outcome = self._run_on_ranks(plan, lambda placed: request(placed, tmp_path))
            attempt = self._judged(_with_finding(test, outcome))
            self._directories.keep_or_remove(tmp_path, attempt.reports)
        except HostDiedError as death:
            again = functools.partial(self._attempt, item, next_item, planned)
            return self._after_death_of_host(test, again, str(death))
        except gpus.LeaseError as problem:
            return _failed(test, str(problem))
        except (NoRankError, pytest.UsageError) as problem:
            return self._without_rank(test, str(problem))
        except OrphanedError:
            # xdist's main process is gone, and execnet would take seconds to notice.
            self.close()
            os._exit(3)
        self._fruitless = 0
        self.orders.set_doubtful(item, is_doubtful(outcome, attempt.diagnoses))
        return attempt

    def _shown(self, attempt: Attempt) -> list[pytest.TestReport]:
        """Write and warn what belongs to an attempt that counts; returns its reports."""
        self._diagnoses = attempt.diagnoses
        if (outcome := attempt.outcome) is not None:
            self._write_diagnoses(outcome)
            self._messages.after_test(outcome, attempt.reports)
            self._write_trace(outcome, attempt.reports)
        return attempt.reports

    def raised(self, report: pytest.TestReport) -> BaseException:
        """The exception for a failed report of the last run."""
        of_phase = (found for found in self._diagnoses if found.phase.value == report.when)
        return exception_of(report, next(of_phase, None))

    def _write_trace(self, outcome: RunOutcome, reports: list[pytest.TestReport]) -> None:
        if (directory := self._options.trace) is None:
            return
        from pytest_ddp.trace import files  # noqa: PLC0415

        try:
            picture = files.write(directory, outcome, reports)
        except OSError as error:
            self._messages.warn(f"--ddp-trace={directory}: no trace could be written: {error}")
            return
        failures: list[Any] = [report.longrepr for report in reports if report.failed]
        if picture is not None and hasattr(failures[0], "addsection"):
            failures[0].addsection("Picture", stack_dumps.shorten(str(picture)))

    def _judged(self, outcome: RunOutcome) -> Attempt:
        exits = [
            rank.done
            for rank in outcome.ranks
            if rank.done is not None and rank.done.exit_reason is not None
        ]
        if self._terminal.quits:
            self.exit_request = "Quitting debugger", None
        elif exits:
            self.exit_request = exits[0].exit_reason or "", exits[0].exit_code
        else:
            return self._merged(outcome)
        all_timed = (timed for r in outcome.ranks for timed in (*r.reports.values(), *r.subtests))
        if not any(timed.report.failed for timed in all_timed):
            # As in plain pytest, the test that ends the session has no result.
            return Attempt([], outcome)
        self.exit_request = self.exit_request[0], self.exit_request[1] or None
        attempt = self._merged(outcome)
        if self._terminal.quits:
            # Phases that it cut off are no errors, and have no report in plain pytest.
            ended = {phase for rank in outcome.ranks for phase in rank.reports}
            reports = [report for report in attempt.reports if report.when in ended]
            attempt = replace(attempt, reports=reports)
        return attempt

    def _merged(self, outcome: RunOutcome) -> Attempt:
        output, width = self._options.output, width_of(self._config)
        outcome = replace(outcome, docs_url=self._options.docs_url)
        merged = with_subtests(outcome, judge(outcome, output, width), output, width)
        found = tuple(diagnosis.code for diagnosis in merged.diagnoses if diagnosis.code)
        return Attempt(merged.reports, outcome, merged.diagnoses, codes=found)

    def _write_diagnoses(self, outcome: RunOutcome) -> None:
        if (directory := self._options.diagnosis) is None:
            return
        try:
            diagnosis_files.write(directory, outcome, self._diagnoses)
        except OSError as error:
            self._messages.warn(f"--ddp-diagnosis={directory}: {error}")

    def _run_on_ranks(
        self, plan: LaunchPlan, request: Callable[[LaunchPlan], RunRequest]
    ) -> RunOutcome:
        self._bury_host()
        self._fall_back_to_spawn()
        if self._launcher is None:
            self._restart_host()
        assert self._launcher is not None
        assert self._supervisor is not None
        with self._with_devices(plan, self._launcher) as placed:
            return self._supervisor.run(request(placed))

    @contextlib.contextmanager
    def _with_devices(self, plan: LaunchPlan, launcher: Launcher) -> Iterator[LaunchPlan]:
        """Lease the GPUs of a plan, if it has any."""
        if plan.devices is None:
            yield plan
            return
        terms = plan.ranks_per_gpu, plan.timeout, plan.nodeid
        with launcher.lease(plan.world, *terms) as leased:
            yield replace(plan, devices=leased)

    @functools.cached_property
    def _directories(self) -> TmpPaths:
        return TmpPaths(self._config)

    # ------------------------------------------------------------------ trouble and the end

    def _fall_back_to_spawn(self) -> None:
        """Restart the host with spawn, if it must not fork after the imports of its session."""
        launcher = self._launcher
        if launcher is None or (self._start_method is StartMethod.SPAWN and launcher.is_local):
            return
        launcher.wait_until_ready()
        problem = launcher.ready.fork_problem if launcher.ready else None
        if problem is not None:
            advice = (
                "A plugin did that, or the import of a library in it, or with --ddp-import=host "
                "your own code. Each rank now takes seconds to start. Leave that plugin out "
                "(-p no:NAME), or move that import into the function that needs it; "
                "--ddp-start-method=spawn silences this."
            )
            self._messages.warn(SpawnedRanks(problem, advice))
            self._start_method = StartMethod.SPAWN
            self._restart_host()

    def _bury_host(self) -> None:
        """Close a host that died after the last test, so that the next test is not blamed."""
        if (launcher := self._launcher) is None or not launcher.had_rank:
            return
        try:
            launcher.poll(0)
        except HostDiedError:
            self._messages.add_problem(_LOST_WITH_HOST.format(end=_end_of(launcher)))
            self.close()

    def _after_death_of_host(
        self, item: pytest.Item, again: Callable[[], Attempt], words: str
    ) -> Attempt:
        launcher = self._launcher
        assert launcher is not None
        collecting = launcher.ready is None
        fruitless = self._is_fruitless_again(launcher)
        doing = "while it collected" if collecting else f"before {item.nodeid} had ended"
        text = f"{_end_of(launcher)} {doing}"
        self.close()
        can_restart = self._options.import_ is not Import.HOST and launcher.is_local
        if collecting and not fruitless and can_restart:
            # No code of the user had run in it, and no code of the test anywhere.
            self._messages.warn(f"{text}, and was started anew")
            return again()
        if fruitless:
            self._hopeless = f"{text}; see {item.nodeid}."
        last = words.splitlines()[-1] if words else "it printed nothing"
        return self._without_ranks(item, f"{text}: {last}\n\n{words}")

    def _without_rank(self, item: pytest.Item, problem: str) -> Attempt:
        if self._hopeless is not None:
            return self._without_ranks(item, self._hopeless)
        if self._launcher is not None and self._is_fruitless_again(self._launcher):
            self._hopeless = f"no rank can be started; see {item.nodeid}."
        why = stack_dumps.last_exception(problem) or problem.partition("\n")[0].rstrip(":")
        return self._without_ranks(item, f"no rank can be started: {why}\n\n{problem}")

    def _without_ranks(self, item: pytest.Item, text: str) -> Attempt:
        explained = codes.pointer(codes.NO_RANK, self._options.docs_url)
        return _failed(item, f"{text.rstrip()}\n\n{explained}", codes.NO_RANK)

    def _is_fruitless_again(self, launcher: Launcher) -> bool:
        """Whether this start and the one before it failed: then every other would fail too."""
        self._fruitless = 0 if launcher.had_rank else self._fruitless + 1
        return self._fruitless > 1

    def finish(self, *, interrupted: bool, broken_off: bool = True, exit_code: int = 0) -> None:
        """Let the ranks tear down their wide fixtures, then end all processes.

        Args:
            interrupted: whether Ctrl-C ended the session.
            broken_off: whether the session ended before its last test.
            exit_code: given to the launcher, for processes elsewhere that end with the same.

        Raises:
            KeyboardInterrupt: Ctrl-C during the teardown; all processes have ended nevertheless.
        """
        try:
            if self._launcher is not None:
                self._let_finish(self._launcher, interrupted)
                self._launcher.exit_code = exit_code or int(bool(self.problems))
        finally:
            self.close()
            self._coverage.end(broken_off=broken_off)

    def _let_finish(self, launcher: Launcher, interrupted: bool) -> None:
        limit = _INTERRUPTED_TEARDOWN if interrupted else _LAST_TEARDOWN
        ranks = launcher.ranks()
        try:
            for rank, message in ends.finish(launcher, ranks, limit, explain=not interrupted):
                self._messages.tell(rank, message)
        except HostDiedError:
            if any(rank.test for rank in ranks) and not interrupted:
                self._messages.add_problem(_LOST_WITH_HOST.format(end=_end_of(launcher)))
        except NoRankError:
            pass  # Each test has reported why none can run.
        except OrphanedError:
            pass  # The process that would show a problem is gone.

    def close(self) -> None:
        """End host and ranks at once."""
        # The attributes first: a failure below must not leave a launcher that is half closed.
        launcher, self._launcher = self._launcher, None
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.close()
        if launcher is not None:
            launcher.close()


def _failed(item: pytest.Item, problem: str, *found: str) -> Attempt:
    """An attempt that ends in an error before anything of the test has run."""
    return Attempt(failed_without_ranks(item, problem), problem=problem, codes=found)


def _sent(outcome: RunOutcome) -> dict[int, dict[str, Any]]:
    """What plugins in the ranks have sent at the end of the test, by rank."""
    return {rank.rank: rank.done.from_plugins for rank in outcome.ranks if rank.done is not None}


def _with_finding(item: pytest.Item, outcome: RunOutcome) -> RunOutcome:
    """The outcome with what plugins conclude from what they have sent from the ranks."""
    sent = _sent(outcome)
    if not any(sent.values()):
        return outcome
    found = item.config.hook.pytest_ddp_findings(item=item, sent=sent)
    each = ((one,) if isinstance(one, Finding | str) else tuple(one) for one in found if one)
    return replace(outcome, findings=tuple(filter(None, each)))


def _end_of(launcher: Launcher) -> str:
    code = launcher.returncode()
    return f"the host process of the ranks {'does not end' if code is None else exit_text(code)}"
