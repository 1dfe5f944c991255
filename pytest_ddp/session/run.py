"""One attempt at one test: the loop that waits for messages of ranks, their ends, and the clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import TypeAlias

from pytest_ddp.deadlock import collectives, message_ends
from pytest_ddp.deadlock.collectives import NOTHING, balance
from pytest_ddp.deadlock.prober import Prober
from pytest_ddp.deadlock.prover import TimeoutSnapshot, diagnose_timeout
from pytest_ddp.launch.launcher import Launcher, RankReaped
from pytest_ddp.launch.rank_process import RankProcess
from pytest_ddp.launch.rendezvous import Rendezvous
from pytest_ddp.outcome.outcome import (
    Ending,
    Expiry,
    Hang,
    RootCause,
    RunOutcome,
    UnmatchedMessages,
)
from pytest_ddp.outcome.stack_dumps import short_line
from pytest_ddp.protocol.messages import (
    Aside,
    Began,
    Done,
    EndAnnounced,
    EnterHang,
    Exchange,
    Finished,
    FromRank,
    Go,
    NotBegun,
    PhaseReported,
    RankReady,
    RequestTerminal,
    ReturnTerminal,
    SubtestReported,
    Warned,
    XmlNoted,
)
from pytest_ddp.protocol.rank_status import (
    CallRecord,
    Calls,
    Dropped,
    GroupCount,
    RankStatus,
    RequestCalls,
    Traffic,
)
from pytest_ddp.session import collected_parameters, ends
from pytest_ddp.session.display import LiveLine, activity_of
from pytest_ddp.session.exchanges import Exchanges
from pytest_ddp.session.rank_run import RankRun
from pytest_ddp.session.report_reader import Reader
from pytest_ddp.session.run_requests import RunRequest, file_of, is_new, may_import, start_limit
from pytest_ddp.session.terminal import TerminalQueue
from pytest_ddp.system import editors
from pytest_ddp.system.machine import OomKillWatch
from pytest_ddp.system.stdlib import signal, time

# ------------------------------------------------------------------
# A snapshot of all ranks at the timeout, before they are stopped.

ANSWER_LIMIT = 1.0
"""Seconds that a rank gets to answer a probe."""
_BETWEEN_LOOKS = 0.1
"""Seconds; long enough for the kernel's clock ticks (10 ms) to show whether a rank computes."""
_BUSY = 0.1
"""Least share of a processor that a computing rank uses; more than a thread that waits for the GIL,
which wakes up 200 times a second."""
_RUNNABLE, _SUSPENDED = "R", ("T", "t")
"""State letters in ``/proc`` of a process that computes or could, and of one that a signal or a
debugger has stopped."""


def take_snapshot(
    rank_runs: Sequence[RankRun],
    prober: Prober,
    hear_until: Callable[[float, Callable[[], bool]], None],
) -> Expiry:
    """Probe the ranks twice, to find which of them hold up the others.

    Args:
        rank_runs: all ranks of the test.
        prober: sends the probes.
        hear_until: takes messages until a moment (monotonic clock), or until a condition holds.
    """

    def last_answers() -> dict[int, RankStatus]:
        prober.ask()
        hear_until(time.monotonic() + ANSWER_LIMIT, prober.is_answered)
        return prober.answers()

    begin = time.monotonic()
    cpu_before = {rank_run: rank_run.process.glance()[1] for rank_run in rank_runs}
    before = last_answers()
    hear_until(time.monotonic() + _BETWEEN_LOOKS, lambda: False)
    now = last_answers()
    least = _BUSY * (time.monotonic() - begin)
    looks = []
    for rank_run in rank_runs:
        rank, (state, cpu) = rank_run.process.rank, rank_run.process.glance()
        # A loaded machine may leave a computing rank no time: its main thread is runnable then.
        busy = (state == _RUNNABLE or cpu - cpu_before[rank_run] > least) if state else None
        seen = rank_run.ending is not None, state in _SUSPENDED, busy
        answers = before.get(rank), now.get(rank), rank_run.status
        looks.append(TimeoutSnapshot(rank, *seen, *answers))
    return diagnose_timeout(looks)


# Overview
#
# `Run.start` sends each rank a `RunTest`. `Run.supervise` then waits in `_wait` until each
# `RankRun` has an `Ending` (`_open` is empty). All waiting is in `_hear`: it polls the launcher for
# at most as long as nothing else is due (the deadline, the next probe, the live line, the terminal)
# and passes each message to `_take`, the only place where a message changes state.
#
# One rank, a `RankRun`:
#
#   state                      moved by                            next state
#   not `began`                `Began`                             `began`
#                              `NotBegun`                          `Ending.NOT_BEGUN`
#   `began`, `ending` is None  `Done`                              `Ending.DONE`
#                              `RankReaped`, covered by `EndAnnounced`   `Ending.ANNOUNCED`
#   any without an `ending`    `RankReaped`                              `Ending.EXITED`
#                              `_stop`, which kills the rank       `Ending.STOPPED`
#   `Ending.DONE`              `RankReaped`                              `Ending.EXITED`
#
# Ranks that begin without the others (`RunTest.waits_for_go` is False) send no `Began`: `Done`, or
# what `_take_untold` reads in the files of a dead rank, then sets `began` as well.
# A rank is a part of the verdict until the test is over, hence the last row: it has to live
# until the other ranks have ended too.
#
# The test, a `Run`:
#
#   state           moved by                                       next state
#   starting        the last `Began`: `_go` sends `Go`             running, with a new clock
#   running         `_take` with a message that makes `failed`     failed: `_failed_at` is set
#                   `_prober`, which proves a hang                 stuck: `_hang` is set
#                   the clock: `_since` + `_limit`                 timed out: `_timed_out`
#   failed          the clock: `_failed_at` + `_grace`             stopped by `_stop`
#   stuck           `_wait`, in its next turn: `_explain`          stopped by `_stop`
#   timed out       `look`, which sets `_expiry`                   stopped by `_stop`
#   any of these    `_terminal_queue`, when a debugger takes the terminal   paused
#                   the last `Ending`: `_open` is empty             over, also after `_stop`
#   paused          `ReturnTerminal`, or the end of the rank        the state before
#
# Paused is the loop in `_is_looked_at`: messages are taken, no clock runs, and all moments move by
# the time that the user took.
#
# The order in which a failure, a hang and the clock are looked at matters. A rank that failed
# explains why others wait for it: once `_failed_at` is set there is no timeout, and a proved hang
# only cuts the grace short. A proved hang says more than a timeout: `_timed_out` stays False.

_GRACE, _LAST_GRACE = 2.0, 10.0
"""Seconds that ranks may go on after another one has failed, and one that has failed itself.

The first is enough to see whether other ranks fail too; the second lets fixtures tear down."""
_LONG = 60.0
"""Seconds of one poll while a debugger has the terminal and no clock runs."""
_CALLS_LIMIT = 2.0
"""Seconds that idle ranks get to send their collectives; it takes milliseconds."""

OnMessage: TypeAlias = Callable[[int, Aside], None]


class Run:
    """One attempt at one test."""

    def __init__(
        self,
        launcher: Launcher,
        reader: Reader,
        tell: OnMessage,
        oom: OomKillWatch,
        request: RunRequest,
        test: int,
    ) -> None:
        self._launcher = launcher
        self._oom = oom
        self._reader = reader
        self._tell = tell
        self._request = request
        self._test = test
        self._plan = request.plan
        self._timed_out = False
        self._has_run = False
        """Whether at least one rank has run code of the test."""
        self._failed_at: float | None = None
        """When a rank first failed; later, when the last rank that failed ended its part."""
        self._wall, self._began = time.time(), time.monotonic()
        self._since, self._limit = self._began, self._plan.timeout
        """Start of the clock that runs now, and the seconds after which it ends the test."""
        self._expiry: Expiry | None = None
        self._hang: Hang | None = None
        self._mismatch = self._unlike_message = self._parting = ""
        self._mismatch_cause: RootCause | None = None
        self._unopened = ""
        """Why a hang could not be looked into."""
        self._suspicions: tuple[str, ...] = ()
        self._balance = NOTHING
        self._unmatched: tuple[UnmatchedMessages, ...] = ()
        """Sends and receives, at a timeout, whose other end has ended without its part."""
        self._has_left = False
        """Whether sends or receives are unfinished on groups that end with the test."""
        self.rank_runs: list[RankRun] = []
        self._by_process: dict[RankProcess, RankRun] = {}

    # ------------------------------------------------------------------ start

    def start(self, store: str | None, rendezvous: Rendezvous) -> None:
        """Send every rank the order to run the test.

        Args:
            store: name of the store of the process group; None for a test without one.
            rendezvous: for process groups that code under test creates from the environment.
        """
        plan = self._plan
        processes = self._launcher.pool(plan.world)
        self.rank_runs += map(RankRun, processes)
        self._by_process = {rank_run.process: rank_run for rank_run in self.rank_runs}
        self._exchanges = Exchanges(processes)
        self._terminal_queue = TerminalQueue(self._request.terminal, self._by_process)
        self._oom.begin()
        self._wall, self._began = time.time(), time.monotonic()
        self._since = self._began
        environments = [rendezvous.environment(rank) for rank in range(plan.world_size)]
        new = is_new(store, processes)
        # Keys that a fixture set in the store during its set-up live as long as the fixture.
        keys = next((process.keys for process in processes if process.holds_group), self._test)
        port = rendezvous.take()
        with port or nullcontext(), file_of(store if new else None, plan.world) as file:
            # Also with a new port: a rank that connects there must find rank 0 ready to serve it.
            waits_for_go = new or port is not None or may_import(processes, plan.nodeid)
            self._limit = start_limit(plan.timeout) if waits_for_go else plan.timeout
            self._prober = Prober(self._test, processes, self._since + self._limit)
            message = self._request.for_ranks(
                self._test,
                store=store,
                new=new,
                waits_for_go=waits_for_go,
                by_file=bool(file),
                keys=keys,
            )
            for rank, rank_run in enumerate(self.rank_runs):
                # Before the order: the rank writes into these files as soon as it has it.
                rank_run.process.files.begin()
                rank_run.process.store, rank_run.process.keys = store, keys
                if self._request.planned is not None and self._request.planned.alters:
                    rank_run.process.altered = self._request.planned.alters
                serves = () if rank or port is None else port.descriptors
                rank_run.process.order(message, environments[rank], serves, file)

    # ------------------------------------------------------------------ the wait loop

    def supervise(self) -> None:
        """Wait until every rank has ended its part or was stopped."""
        live = self._request.live
        live.begin(self._request.title)
        try:
            self._wait(live)
        finally:
            live.erase()
            self._terminal_queue.end()

    def _wait(self, live: LiveLine) -> None:
        while self._open():
            if self._is_looked_at(live):
                continue
            left = self._deadline() - time.monotonic()
            if left <= 0 and self._failed_at is None and self._hang is None:
                # The look takes messages, so a rank may fail or a hang be proved in it.
                _, self._expiry = self.look()
            if left <= 0 or self._hang is not None:
                self._timed_out = self._failed_at is None and self._hang is None
                if self._hang is not None:
                    self._explain(self._prober.counts())
                elif self._timed_out and self._prober.is_answered():
                    self._explain_timeout()
                if self._failed_at is None and self._request.terminal.wants_post_mortem:
                    self._open_hang()
                self._stop(self._open())
                return
            self._prober.probe()
            if not live.due_in():
                live.show({p.process.rank: activity_of(p.ending, p.status) for p in self.rank_runs})
            wait = min(left, self._prober.due_in(), live.due_in(), self._terminal_queue.due_in())
            self._hear(wait)

    def _hear(self, seconds: float) -> None:
        for process, message in self._launcher.poll(seconds):
            if (rank_run := self._by_process.get(process)) is not None:
                self._take(rank_run, message)

    # ------------------------------------------------------------------ debuggers

    def _is_looked_at(self, live: LiveLine) -> bool:
        """Whether a rank was in a debugger; waits until it has left it, while no clock runs."""
        self._terminal_queue.lend()
        live_is_up = True
        while self._terminal_queue.taken:
            if live_is_up:
                live.erase()
            live_is_up = False
            self._hear(_LONG)
        if live_is_up:
            return False
        paused = self._terminal_queue.take_pause()
        self._began += paused
        self._since += paused
        if self._failed_at is not None:
            self._failed_at += paused
        self._prober.postpone(paused)
        live.begin(self._request.item.name)
        return True

    def _open_hang(self) -> None:
        """Open a debugger in a rank that is stuck, before it is stopped."""
        culprits = self._hang.culprits if self._hang is not None else ()
        stuck = [rank_run for rank_run in self._open() if rank_run.process.rank not in culprits]
        rank_run = (stuck or self._open())[0]
        rank_run.process.send(EnterHang(self._test))
        self._hear_until(time.monotonic() + ANSWER_LIMIT, lambda: self._terminal_queue.taken)
        if not self._is_looked_at(self._request.live):
            self._unopened = f"--pdb: rank {rank_run.process.rank} could not be entered: no answer."

    def _hear_until(self, moment: float, done: Callable[[], bool] = lambda: False) -> None:
        while not done() and (left := moment - time.monotonic()) > 0:
            self._hear(left)

    def _open(self) -> list[RankRun]:
        return [rank_run for rank_run in self.rank_runs if rank_run.ending is None]

    def _deadline(self) -> float:
        if editors.is_attached():
            # An editor's debugger holds ranks without notice to this process.
            return math.inf
        end = self._since + self._limit
        if self._failed_at is not None:
            end = min(end, self._failed_at + self._grace())
        return end

    def _grace(self) -> float:
        # If one rank could not begin, the others wait for it in the set-up of the group.
        hopeless = any(rank_run.ending is Ending.NOT_BEGUN for rank_run in self.rank_runs)
        if hopeless or self._has_quit():
            return 0.1
        return _LAST_GRACE if any(rank_run.failed for rank_run in self._open()) else _GRACE

    def _has_quit(self) -> bool:
        """Whether the user quit a debugger, and its rank has ended its part."""
        exits = (
            rank_run.done is not None and rank_run.done.exit_reason for rank_run in self.rank_runs
        )
        return self._request.terminal.quits and any(exits)

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _take(self, rank_run: RankRun, message: FromRank | RankReaped) -> None:
        match message:
            case RankReaped():
                self._take_untold(rank_run)
                rank_run.is_gone(self._request.item, self._wall, self._now())
            case Warned() | XmlNoted() | Finished():
                self._tell(rank_run.process.rank, message)
            case RankReady():
                pass  # `Supervisor._bring_up` has waited for it.
            case _ if message.test != self._test:
                pass  # A late message of the test before.
            case RankStatus():
                rank_run.status = message
                has_ended = rank_run.ending is not None
                self._hang = (
                    self._prober.take(rank_run.process.rank, message, has_ended) or self._hang
                )
                return
            case Calls():
                raise AssertionError("Calls, while the test runs and no TellCalls was sent")
            case Began():
                rank_run.begin(self._plan.nodeid)
                rank_run.parameters = message.parameters
                if all(rank_run.began for rank_run in self.rank_runs):
                    self._go()
            case RequestTerminal():
                self._terminal_queue.want(rank_run.process)
                return
            case ReturnTerminal():
                self._terminal_queue.leave(rank_run.process, message)
                if not message.quits:
                    return
                self._failed_at = self._failed_at or time.monotonic()
            case NotBegun():
                rank_run.problem, rank_run.retryable = message.problem, message.retryable
                rank_run.end(Ending.NOT_BEGUN, self._now())
            case PhaseReported():
                rank_run.take(self._reader.phase(message), self._now())
            case SubtestReported():
                rank_run.take_subtest(self._reader.subtest(message), self._now())
            case Done():
                self._has_run = True
                rank_run.done = message
                rank_run.begin(self._plan.nodeid)
                rank_run.take_passed(self._request.item, self._wall, message.passed)
                rank_run.process.holds_group, rank_run.process.needs_peers = (
                    message.holds_group,
                    message.needs_peers,
                )
                if message.modules_changed:
                    rank_run.process.module_state = self._plan.module_state
                rank_run.end(Ending.DONE, self._now())
            case EndAnnounced():
                rank_run.announced = message
            case Exchange():
                self._exchanges.arrive(rank_run.process, message)
        self._prober.hear()
        if rank_run.ending is not None:
            self._terminal_queue.leave(rank_run.process)
            self._exchanges.leave(rank_run.process, rank_run.ending.value)
        # Restarted at each end of a failed rank: the others may have waited for its teardown.
        if rank_run.failed and (self._failed_at is None or rank_run.ending is not None):
            self._failed_at = time.monotonic()

    def _go(self) -> None:
        self._has_run = True
        self._since, self._limit = time.monotonic(), self._plan.timeout
        self._prober.end_by(self._since + self._limit)
        refusals = collected_parameters.refusals(
            [rank_run.parameters for rank_run in self.rank_runs]
        )
        for rank_run in self.rank_runs:
            rank_run.process.send(Go(self._test, refusals))

    def _take_untold(self, rank_run: RankRun) -> None:
        """Take reports that a rank held back to send with its `Done`, which will not come."""
        recovered = rank_run.process.files.recovered_reports()
        if recovered.test == self._test:
            self._has_run = True
            rank_run.begin(self._plan.nodeid)
            rank_run.take_passed(self._request.item, self._wall, recovered.passed)

    # ------------------------------------------------------------------ comparing

    def compare(self) -> None:
        """Compare the ranks' collectives and messages, if all ranks have ended well."""
        counts = self._counts()
        if not self._plan.check_collectives or len(counts) != len(self.rank_runs):
            return
        if collectives.needs_calls(counts):
            calls = self._ask_for_calls()
            self._mismatch = collectives.difference(counts, calls)
            self._mismatch_cause = collectives.root_cause(counts, calls)
            self._suspicions = tuple(collectives.suspicions(counts, calls))
        before = self.rank_runs[0].process.open
        self._unlike_message = message_ends.difference(counts, self._traffic(), before)

    def settle(self) -> None:
        """Match sends with receives, those of wide fixtures included."""
        first = self.rank_runs[0].process
        traffic = self._traffic()
        if not (traffic or first.open or first.spoiled):
            return
        if all(rank_run.done is not None for rank_run in self.rank_runs):
            keeps = self._keeps_group()
            self._balance = balance(self._counts(), traffic, first.open, keeps=keeps)
        lost = any(each.lost for each in traffic.values())
        left = lost or bool(self._balance.unfinished) or first.spoiled
        self._has_left = left and not self._keeps_group()
        for rank_run in self.rank_runs:
            rank_run.process.open = self._balance.open
            rank_run.process.spoiled = left and self._keeps_group()

    def _traffic(self) -> dict[int, Traffic]:
        """The messages of each rank that has ended its test with some."""
        done = {
            rank_run.process.rank: rank_run.done
            for rank_run in self.rank_runs
            if rank_run.done is not None
        }
        return {rank: each.traffic for rank, each in done.items() if each.traffic is not None}

    def _keeps_group(self) -> bool:
        return any(rank_run.process.holds_group for rank_run in self.rank_runs)

    def _explain(self, counts: dict[int, tuple[GroupCount, ...]]) -> None:
        """Find where the ranks' collectives first differ: a hang's cause may be before its wait."""
        if collectives.needs_calls(counts):
            calls = self._ask_for_calls()
            self._parting = collectives.difference(counts, calls, sides=2)
            self._suspicions = tuple(collectives.suspicions(counts, calls))

    def _explain_timeout(self) -> None:
        """Find what is wrong already, though no hang is proved.

        For NCCL this is all that can be found: the GPU waits and not the thread that issued a
        collective, so that a hang is not proved.
        """
        counts, calls = self._prober.counts(), self._ask_for_calls()
        ended = {
            rank_run.process.rank for rank_run in self.rank_runs if rank_run.ending is not None
        }
        self._parting = collectives.difference(collectives.issued_in_vain(counts, ended), calls)
        answers = {
            rank_run.process.rank: rank_run.calls
            for rank_run in self.rank_runs
            if rank_run.calls is not None
        }
        traffic = {r: each.traffic for r, each in answers.items() if each.traffic is not None}
        if traffic and len(answers) == len(self.rank_runs):
            found = balance(counts, traffic, self.rank_runs[0].process.open, keeps=False).unfinished
            self._unmatched = tuple(each for each in found if each.missing_end in ended)

    def _ask_for_calls(self) -> dict[int, tuple[CallRecord, ...]]:
        living = [rank_run for rank_run in self.rank_runs if not rank_run.process.gone]
        for rank_run in living:
            rank_run.process.send(RequestCalls(self._test))
        deadline = time.monotonic() + _CALLS_LIMIT
        while any(rank_run.calls is None for rank_run in living):
            if (left := deadline - time.monotonic()) <= 0:
                break
            # Not by `_hear`: a message that is late may not change a verdict that is made.
            for process, message in self._launcher.poll(left):
                if isinstance(message, Calls):
                    self._by_process[process].calls = message
        return {
            rank_run.process.rank: rank_run.calls.calls
            for rank_run in self.rank_runs
            if rank_run.calls is not None
        }

    # ------------------------------------------------------------------ stopping

    def _stop(self, rank_runs: list[RankRun]) -> None:
        for rank_run in rank_runs:
            # Before the signal for stacks: it ends a `signal.pause()`, and so the rank's test.
            self._take_untold(rank_run)
        stacks = ends.ask_for_stacks(self._launcher, [rank_run.process for rank_run in rank_runs])
        for rank_run in rank_runs:
            rank_run.stacks = stacks[rank_run.process]
            rank_run.end(Ending.STOPPED, self._now())
            self._launcher.kill(rank_run.process)
        ends.wait_for_ends(self._launcher, [rank_run.process for rank_run in rank_runs])

    def look(self) -> tuple[float, Expiry]:
        """Seconds since the test began, and what its ranks are doing now."""
        return self._now(), take_snapshot(self.rank_runs, self._prober, self._hear_until)

    def interrupt(self) -> None:
        """Pass Ctrl-C on to the ranks that still work."""
        for rank_run in self._open():
            rank_run.process.signal(signal.SIGINT)

    # ------------------------------------------------------------------ the end

    @property
    def nodeid(self) -> str:
        """The node id of the test."""
        return self._plan.nodeid

    def is_retryable(self) -> bool:
        """True if the attempt failed before any code of the test ran.

        That is in the set-up of the group, or because a reused rank was dying already.
        """
        return not self._has_run and any(
            rank_run.retryable or rank_run.died_before for rank_run in self.rank_runs
        )

    def is_out_of_step(self) -> bool:
        """True if unfinished communication of this test could reach the next one on its groups."""
        return self._has_left or collectives.out_of_step(self._counts())

    def used_rendezvous(self) -> bool:
        """True if ranks have, or may have, met by the store of their environment."""
        return any(
            rank_run.done is None or rank_run.done.used_rendezvous or rank_run.failed
            for rank_run in self.rank_runs
        )

    def _counts(self) -> dict[int, tuple[GroupCount, ...]]:
        return {
            rank_run.process.rank: rank_run.done.counts
            for rank_run in self.rank_runs
            if rank_run.done is not None
        }

    def outcome(self, notes: tuple[str, ...]) -> RunOutcome:
        """The record of this attempt.

        Args:
            notes: sentences for the verdict, before those of the attempt itself.
        """
        item, failed = self._request.item, any(rank_run.failed for rank_run in self.rank_runs)
        setup_only = bool(item.config.getoption("setuponly", False))
        return RunOutcome(
            nodeid=item.nodeid,
            location=item.location,
            keywords=dict.fromkeys(item.keywords, 1),
            backend=self._plan.backend,
            ranks=tuple(rank_run.outcome(setup_only=setup_only) for rank_run in self.rank_runs),
            check_collectives=self._plan.check_collectives,
            start=self._wall,
            duration=self._now(),
            began=self._began,
            timeout=self._limit if self._timed_out else None,
            expiry=self._expiry if self._timed_out else None,
            hang=self._hang,
            mismatch=self._mismatch,
            mismatch_cause=self._mismatch_cause,
            unlike_message=self._unlike_message,
            suspicions=self._suspicions,
            unfinished=self._balance.unfinished if self._all_passed() else (),
            keeps_group=self._keeps_group(),
            oom=self._oom.end() if failed else "",
            notes=tuple(filter(None, (*notes, *self._notes()))),
        )

    def _all_passed(self) -> bool:
        """Whether no report has failed: a failed test may leave sends without a receive."""
        timed = (timed for rank_run in self.rank_runs for timed in rank_run.reports.values())
        return all(each.report.passed for each in timed)

    def _notes(self) -> tuple[str, ...]:
        where = self._launcher.where(self._plan.world)
        spared = self._prober.spared() if self._hang is None else ""
        return (
            *(where, self._parting, spared, *self._suspicions, self._unopened),
            *self._dropped(),
            *map(_without_other_end, self._unmatched),
        )

    def _dropped(self) -> Iterator[str]:
        """Messages without a handle, for which another rank waits in vain."""
        if self._hang is None and not self._timed_out:
            return
        by_rank = {rank_run.process.rank: rank_run for rank_run in self.rank_runs}
        for rank, rank_run in by_rank.items():
            traffic = None if rank_run.done is None else rank_run.done.traffic
            for one in getattr(traffic or rank_run.status, "dropped", ()):
                peer = by_rank.get(one.peer)
                if peer is not None and peer.done is None and _awaits(peer.status, rank, one):
                    what = "send to" if one.is_send else "receive from"
                    yield (
                        f"rank {rank} dropped the handle of a {what} rank {one.peer} at "
                        f"{short_line(one.site)} before anything waited for it: gloo may never "
                        "complete it."
                    )


def _without_other_end(one: UnmatchedMessages) -> str:
    _, _, sender, receiver, _ = one.route
    at = "" if one.site is None else f" at {short_line(one.site)}"
    if one.count < 0:
        return (
            f"rank {receiver} called recv from rank {sender}{at}, and rank {sender} has ended the "
            "test without that send."
        )
    return (
        f"rank {sender} called send to rank {receiver}{at}, and rank {receiver} has ended the test "
        "without that recv."
    )


def _awaits(status: RankStatus | None, rank: int, dropped: Dropped) -> bool:
    """Whether a rank waits for the other end of a message of another rank's."""
    if status is None:
        return False
    other_end = "recv" if dropped.is_send else "send"
    return any(wait.operation == other_end and wait.peer == rank for wait in status.waits)
