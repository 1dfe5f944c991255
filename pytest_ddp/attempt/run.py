"""One attempt at one test: the wait loop that hears ranks, their ends, and the clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import TypeAlias

from pytest_ddp.attempt import ends
from pytest_ddp.attempt.exchanges import Exchanges
from pytest_ddp.attempt.lastlook import ANSWER_LIMIT, look_twice
from pytest_ddp.attempt.live import LiveLine, doing_of
from pytest_ddp.attempt.order import Order, file_of, is_new, may_import, start_limit
from pytest_ddp.attempt.part import ForAll, Part
from pytest_ddp.attempt.reading import Reader
from pytest_ddp.attempt.terminal import Turns
from pytest_ddp.evidence.outcome import Ending, Expiry, Hang, RootCause, RunOutcome
from pytest_ddp.launch.launcher import Gone, Launcher
from pytest_ddp.launch.rankprocess import RankProcess, Wording
from pytest_ddp.launch.rendezvous import Rendezvous
from pytest_ddp.proof import compare
from pytest_ddp.proof.balance import NOTHING, balance
from pytest_ddp.proof.prober import Prober
from pytest_ddp.system import editors
from pytest_ddp.system.memory import OomWatch
from pytest_ddp.system.own import signal, time
from pytest_ddp.wire.debugging import EnterHang, LeaveTerminal, WantTerminal
from pytest_ddp.wire.protocol import (
    Aside,
    Began,
    Done,
    EndAnnounced,
    Exchange,
    Finished,
    FromRank,
    Go,
    NotBegun,
    PhaseReported,
    RankReady,
    SubtestReported,
    Warned,
    XmlNoted,
)
from pytest_ddp.wire.survey import CallRecord, Calls, GroupCount, Standing, TellCalls

_GRACE, _LAST_GRACE = 2.0, 10.0
"""Seconds that ranks may go on after another one has failed, and one that has failed itself."""
_LONG = 60.0
"""Seconds that a user is waited for at a time, where no clock runs."""
_CALLS_LIMIT = 2.0
"""Seconds that idle ranks are given to tell their collectives; it takes milliseconds."""

Tell: TypeAlias = Callable[[int, Aside], None]


class Run:
    """One attempt at one test."""

    def __init__(
        self,
        launcher: Launcher,
        reader: Reader,
        tell: Tell,
        oom: OomWatch,
        order: Order,
        test: int,
    ) -> None:
        self._launcher = launcher
        self._oom = oom
        self._reader = reader
        self._tell = tell
        self._order = order
        self._test = test
        self._plan = order.plan
        self._timed_out = False
        self._has_run = False
        """Whether some rank is known to have run code of the test."""
        self._failed_at: float | None = None
        """When a rank first failed, and later when the last that had failed ended its part."""
        self._wall, self._began = time.time(), time.monotonic()
        self._since, self._limit = self._began, self._plan.timeout
        """When the clock that now runs was started, and after how many seconds it ends the test."""
        self._expiry: Expiry | None = None
        self._hang: Hang | None = None
        self._mismatch = self._parting = ""
        self._mismatch_cause: RootCause | None = None
        self._unopened = ""
        """Why a hang could not be looked into."""
        self._suspicions: tuple[str, ...] = ()
        self._balance = NOTHING
        self._has_left = False
        """Whether sends or receives are left on groups that are no wider than the test."""
        self.parts: list[Part] = []
        self._have_begun = ForAll(self.parts, lambda part: part.began)
        self._have_ended = ForAll(self.parts, lambda part: part.ending is not None)
        self._by_process: dict[RankProcess, Part] = {}

    # ------------------------------------------------------------------ start

    def start(self, store: str | None, rendezvous: Rendezvous) -> None:
        """Tell every rank to run the test.

        Args:
            store: name of the store of the process group; None for a test without one.
            rendezvous: where code under test may meet by itself.
        """
        plan = self._plan
        processes = self._launcher.pool(plan.world)
        self.parts += map(Part, processes)
        self._by_process = {part.process: part for part in self.parts}
        self._exchanges = Exchanges(processes)
        self._turns = Turns(self._order.terminal, self._by_process)
        self._oom.begin()
        self._wall, self._began = time.time(), time.monotonic()
        self._since = self._began
        environments = [rendezvous.environment(rank) for rank in range(plan.world_size)]
        new = is_new(store, processes)
        # What a fixture has set in its set-up is there for as long as it is.
        keys = next((process.keys for process in processes if process.tied), self._test)
        port = rendezvous.take()
        with port or nullcontext(), file_of(store if new else None, plan.world) as file:
            together = new or may_import(processes, plan.nodeid)
            self._limit = start_limit(plan.timeout) if together else plan.timeout
            self._prober = Prober(self._test, processes, self._since + self._limit)
            known = store, new, together, bool(file), keys
            told = Wording(self._order.for_ranks(self._test, *known))
            for rank, part in enumerate(self.parts):
                part.process.files.begin()
                part.process.store, part.process.keys = store, keys
                serves = () if rank or port is None else port.descriptors
                part.process.order(told, environments[rank], serves, file)

    # ------------------------------------------------------------------ the wait loop

    def supervise(self) -> None:
        """Wait until every rank has ended its part, or has been stopped."""
        live = self._order.live
        live.begin(self._order.item.name)
        try:
            self._wait(live)
        finally:
            live.erase()
            self._turns.end()

    def _wait(self, live: LiveLine) -> None:
        while not self._have_ended():
            if self._is_looked_at(live):
                continue
            left = self._deadline() - time.monotonic()
            if left <= 0 and self._failed_at is None and self._hang is None:
                _, self._expiry = self.look()
            if left <= 0 or self._hang is not None:
                self._timed_out = self._failed_at is None and self._hang is None
                if self._hang is not None:
                    self._explain(self._prober.counts())
                if self._failed_at is None and self._order.terminal.wants_post_mortem:
                    self._open_hang()
                self._stop(self._open())
                return
            self._prober.probe()
            if not live.due_in():
                live.show({p.process.rank: doing_of(p.ending, p.standing) for p in self.parts})
            wait = min(left, self._prober.due_in(), live.due_in(), self._turns.due_in())
            self._hear(wait)

    def _hear(self, seconds: float) -> None:
        for process, message in self._launcher.poll(seconds):
            if (part := self._by_process.get(process)) is not None:
                self._take(part, message)

    # ------------------------------------------------------------------ debuggers

    def _is_looked_at(self, live: LiveLine) -> bool:
        """Whether a rank is in a debugger; hears on while it is, and no clock runs."""
        self._turns.lend()
        live_is_up = True
        while self._turns.taken:
            if live_is_up:
                live.erase()
            live_is_up = False
            self._hear(_LONG)
        if live_is_up:
            return False
        stood = self._turns.stood_still()
        self._began += stood
        self._since += stood
        if self._failed_at is not None:
            self._failed_at += stood
        self._prober.postpone(stood)
        live.begin(self._order.item.name)
        return True

    def _open_hang(self) -> None:
        """Let the user look at a rank that is stuck before it is stopped."""
        culprits = self._hang.culprits if self._hang is not None else ()
        stuck = [part for part in self._open() if part.process.rank not in culprits]
        part = (stuck or self._open())[0]
        part.process.send(EnterHang(self._test))
        self._hear_until(time.monotonic() + ANSWER_LIMIT, lambda: self._turns.taken)
        if not self._is_looked_at(self._order.live):
            self._unopened = f"--pdb: rank {part.process.rank} could not be entered: no answer."

    def _hear_until(self, moment: float, done: Callable[[], bool] = lambda: False) -> None:
        while not done() and (left := moment - time.monotonic()) > 0:
            self._hear(left)

    def _open(self) -> list[Part]:
        return [part for part in self.parts if part.ending is None]

    def _deadline(self) -> float:
        if editors.is_attached():
            # It holds ranks, and nobody here is told.
            return math.inf
        end = self._since + self._limit
        if self._failed_at is not None:
            end = min(end, self._failed_at + self._grace())
        return end

    def _grace(self) -> float:
        # Where one rank could not begin, the others wait in the set-up of the group.
        hopeless = any(part.ending is Ending.NOT_BEGUN for part in self.parts)
        if hopeless or self._has_quit():
            return 0.1
        return _LAST_GRACE if any(part.failed for part in self._open()) else _GRACE

    def _has_quit(self) -> bool:
        """Whether the user has left a debugger for good, and its rank has ended its part."""
        exits = (part.done is not None and part.done.exit_reason for part in self.parts)
        return self._order.terminal.quits and any(exits)

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _take(self, part: Part, message: FromRank | Gone) -> None:
        match message:
            case Gone():
                self._take_untold(part)
                part.is_gone(self._order.item, self._wall, self._now())
            case Warned() | XmlNoted() | Finished():
                self._tell(part.process.rank, message)
            case RankReady():
                """It was waited for already."""
            case _ if message.test != self._test:
                """Something late from the test before."""
            case Standing():
                part.standing = message
                has_ended = part.ending is not None
                self._hang = self._prober.take(part.process.rank, message, has_ended) or self._hang
                return
            case Calls():
                raise AssertionError("nobody asked for calls while the test ran")
            case Began():
                part.begin(self._plan.nodeid)
                if self._have_begun():
                    self._go()
            case WantTerminal():
                self._turns.want(part.process)
                return
            case LeaveTerminal():
                self._turns.leave(part.process, message)
                if not message.quits:
                    return
                self._failed_at = self._failed_at or time.monotonic()
            case NotBegun():
                part.problem, part.worth_a_retry = message.problem, message.worth_a_retry
                part.end(Ending.NOT_BEGUN, self._now())
            case PhaseReported():
                part.take(self._reader.phase(message), self._now())
            case SubtestReported():
                part.take_subtest(self._reader.subtest(message), self._now())
            case Done():
                self._has_run = True
                part.done = message
                part.begin(self._plan.nodeid)
                part.take_passed(self._order.item, self._wall, message.passed)
                part.process.tied, part.process.together = message.tied, message.together
                if message.modules_changed:
                    part.process.family = self._plan.family
                part.end(Ending.DONE, self._now())
            case EndAnnounced():
                part.announced = message
            case Exchange():
                self._exchanges.arrive(part.process, message)
        self._prober.hear()
        if part.ending is not None:
            self._turns.leave(part.process)
            self._exchanges.leave(part.process, part.ending.value)
        if part.failed and (self._failed_at is None or part.ending is not None):
            self._failed_at = time.monotonic()

    def _go(self) -> None:
        self._has_run = True
        self._since, self._limit = time.monotonic(), self._plan.timeout
        self._prober.end_by(self._since + self._limit)
        for part in self.parts:
            part.process.send(Go(self._test))

    def _take_untold(self, part: Part) -> None:
        """Take what a rank has kept for an end of its test that does not come."""
        untold = part.process.files.untold()
        if untold.test == self._test:
            self._has_run = True
            part.begin(self._plan.nodeid)
            part.take_passed(self._order.item, self._wall, untold.passed)

    # ------------------------------------------------------------------ comparing

    def compare(self) -> None:
        """Compare the ranks' collectives, once all of them have ended well."""
        counts = self._counts()
        wanted = self._plan.check_collectives and len(counts) == len(self.parts)
        if not (wanted and compare.need_calls(counts)):
            return
        calls = self._ask_for_calls()
        self._mismatch = compare.difference(counts, calls)
        self._mismatch_cause = compare.root_cause(counts, calls)
        self._suspicions = tuple(compare.suspicions(counts, calls))

    def settle(self) -> None:
        """Hold sends against receives, those of wide fixtures included."""
        first = self.parts[0].process
        done = {part.process.rank: part.done for part in self.parts if part.done is not None}
        traffic = {rank: each.traffic for rank, each in done.items() if each.traffic is not None}
        if not (traffic or first.open or first.spoiled):
            return
        if len(done) == len(self.parts):
            keeps = self._keeps_group()
            self._balance = balance(self._counts(), traffic, first.open, keeps=keeps)
        lost = any(told.lost for told in traffic.values())
        left = lost or bool(self._balance.unfinished) or first.spoiled
        self._has_left = left and not self._keeps_group()
        for part in self.parts:
            part.process.open = self._balance.open
            part.process.spoiled = left and self._keeps_group()

    def _keeps_group(self) -> bool:
        return any(part.process.tied for part in self.parts)

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
        for part in parts:
            # Before the signal that asks for stacks, which ends a signal.pause() and its test.
            self._take_untold(part)
        stacks = ends.ask_for_stacks(self._launcher, [part.process for part in parts])
        for part in parts:
            part.stacks = stacks[part.process]
            part.end(Ending.STOPPED, self._now())
            self._launcher.kill(part.process)
        ends.wait_for_ends(self._launcher, [part.process for part in parts])

    def look(self) -> tuple[float, Expiry]:
        """Seconds since the test began, and where its ranks stand now."""
        return self._now(), look_twice(self.parts, self._prober, self._hear_until)

    def interrupt(self) -> None:
        """Pass Ctrl-C on to the ranks that still work."""
        for part in self._open():
            part.process.signal(signal.SIGINT)

    # ------------------------------------------------------------------ the end

    def is_worth_a_retry(self) -> bool:
        """True if it went wrong before any code of the test.

        In the set-up of the group, or with a warm rank that was dying when the test came.
        """
        return not self._has_run and any(
            part.worth_a_retry or part.died_before for part in self.parts
        )

    def is_out_of_step(self) -> bool:
        """True if the next test on the ranks' groups may meet what this one has not finished."""
        return self._has_left or compare.out_of_step(self._counts())

    def has_met(self) -> bool:
        """True unless no rank can have met another by the store of its environment."""
        return any(part.done is None or part.done.met or part.failed for part in self.parts)

    def _counts(self) -> dict[int, tuple[GroupCount, ...]]:
        return {part.process.rank: part.done.counts for part in self.parts if part.done is not None}

    def outcome(self, notes: tuple[str, ...]) -> RunOutcome:
        item, failed = self._order.item, any(part.failed for part in self.parts)
        setup_only = bool(item.config.getoption("setuponly", False))
        return RunOutcome(
            nodeid=item.nodeid,
            location=item.location,
            keywords=dict.fromkeys(item.keywords, 1),
            backend=self._plan.backend,
            ranks=tuple(part.outcome(setup_only=setup_only) for part in self.parts),
            check_collectives=self._plan.check_collectives,
            start=self._wall,
            duration=self._now(),
            began=self._began,
            timeout=self._limit if self._timed_out else None,
            expiry=self._expiry if self._timed_out else None,
            hang=self._hang,
            mismatch=self._mismatch,
            mismatch_cause=self._mismatch_cause,
            suspicions=self._suspicions,
            unfinished=self._balance.unfinished if self._all_passed() else (),
            keeps_group=self._keeps_group(),
            oom=self._oom.end() if failed else "",
            notes=tuple(filter(None, (*notes, *self._notes()))),
        )

    def _all_passed(self) -> bool:
        """Whether no rank has said otherwise: what a failure cuts off is a part of it."""
        timed = (timed for part in self.parts for timed in part.reports.values())
        return all(each.report.passed for each in timed)

    def _notes(self) -> tuple[str, ...]:
        where = self._launcher.where(self._plan.world)
        spared = self._prober.spared() if self._hang is None else ""
        return where, self._parting, spared, *self._suspicions, self._unopened
