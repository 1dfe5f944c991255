"""The timeline of a test: the events of all ranks, and the final state of each."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pytest_ddp.deadlock.prover import wait_words
from pytest_ddp.outcome.outcome import Ending, RankLine, RankOutcome, RunOutcome
from pytest_ddp.protocol.messages import Phase as ReportPhase
from pytest_ddp.protocol.rank_status import CodeLine, RankStatus, group_words
from pytest_ddp.protocol.trace_lines import TraceLine
from pytest_ddp.rank.operations.table import SIZES
from pytest_ddp.system.stdlib import json
from pytest_ddp.verdict.lost_ranks import explanations
from pytest_ddp.verdict.rank_failure import (
    RankFailure,
    describe,
    first_line,
    lost_phase,
    message_of,
)

# ------------------------------------------------------------------
# Parses the lines that a rank wrote into its phases and collectives.
#
# Pure. All times are nanoseconds since the test began. The text may break off anywhere: the rank
# may have been killed between two lines, or within one.


class CollectiveState(enum.Enum):
    """The state of a collective; the value completes "the collective ..."."""

    DONE = "is complete"
    FAILED = "failed"
    PENDING = "is not complete"
    UNAWAITED = "was never waited for"
    """The collective may be complete or not."""


@dataclass(frozen=True, slots=True)
class TracedPhase:
    """A phase of a rank, inside those of smaller depth."""

    name: str
    depth: int
    """How many phases the phase is inside of; 0 for setup, call and teardown."""
    begin: int
    end: int
    site: CodeLine | None = None
    """The line that began the phase; None for pytest's own phases."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective, a send or a receive of a rank."""

    operation: str
    group: str
    number: int
    """Number of the collective on its group in this test, from 1; 0 for a message."""
    begin: int
    end: int
    state: CollectiveState
    elements: int | None = None
    """The number of elements of the tensors that the rank passed as input, or as output to be
    filled."""
    dtype: str | None = None
    reduce_op: str | None = None
    root: int | None = None
    """Source or destination in the group; the peer of a message."""
    site: CodeLine | None = None
    """The line of the call; None if C++ issued it."""
    error: str = ""
    """Name of the exception that ended the wait for it."""

    @property
    def bytes(self) -> int | None:
        """The bytes of the collective's elements; None for a dtype that has no size here."""
        size = SIZES.get(self.dtype or "")
        return None if size is None or self.elements is None else size * self.elements

    @property
    def by_python(self) -> bool:
        """False for a collective that C++ issued, whose end the recorder does not know."""
        return self.site is not None


@dataclass(frozen=True, slots=True)
class Events:
    """All events of one rank in one test."""

    phases: tuple[TracedPhase, ...] = ()
    collectives: tuple[Collective, ...] = ()
    truncated: bool = False
    """Whether the rank's file was full."""


def parse(text: str, began: int, until: int) -> Events:
    """Parse the file of a rank.

    Args:
        text: its lines.
        began: when the test began, in nanoseconds on the monotonic clock.
        until: when the rank ended its part, in nanoseconds since then.
    """
    reader = _EventReader(began, until)
    for line in _lines(text):
        reader.take(*line)
    return reader.events()


def _lines(text: str) -> Iterator[list[Any]]:
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # the unfinished last line of a rank that was killed
            return


@dataclass
class _EventReader:
    began: int
    until: int
    open: list[TracedPhase] = field(default_factory=list)
    phases: list[TracedPhase] = field(default_factory=list)
    before: dict[str, int] = field(default_factory=dict)
    unawaited: dict[int, Collective] = field(default_factory=dict)
    collectives: list[Collective] = field(default_factory=list)
    recorded: dict[int, Collective] = field(default_factory=dict)
    truncated: bool = False

    def take(self, what: str, at: int, *details: Any) -> None:
        now = at - self.began
        match TraceLine(what):
            case TraceLine.PHASE:
                self._phase(now, *details)
            case TraceLine.LEFT:
                self._close(details[0], now)
            case TraceLine.GROUP:
                self.before[details[0]] = details[1]
            case TraceLine.CALL:
                self._call(now, *details)
            case TraceLine.WAITED:
                self._waited(now, *details)
            case TraceLine.RECORDED:
                self._record(*details)
            case TraceLine.FULL:
                self.truncated = True

    def _phase(self, now: int, depth: int, name: str, site: list[Any] | None) -> None:
        # The setup of the group and that of the test are shown as one setup.
        goes_on = depth == 0 and self.open[:1] != [] and self.open[0].name == name
        self._close(1 if goes_on else depth, now)
        if not goes_on:
            self.open.append(TracedPhase(name, depth, now, self.until, _code_line(site)))

    def _close(self, depth: int, now: int) -> None:
        while len(self.open) > depth:
            self.phases.append(replace(self.open.pop(), end=now))

    def _call(self, now: int, key: int, group: str, number: int, *details: Any) -> None:
        operation, elements, dtype, reduce_op, root, site = details
        # A key that is used again: nothing waited for the older call.
        if (older := self.unawaited.pop(key, None)) is not None:
            self.collectives.append(older)
        self.unawaited[key] = Collective(
            operation=operation,
            group=group,
            number=self._in_test(group, number),
            begin=now,
            end=self.until,
            state=CollectiveState.UNAWAITED,
            elements=elements,
            dtype=dtype,
            reduce_op=reduce_op,
            root=root,
            site=_code_line(site),
        )

    def _in_test(self, group: str, number: int) -> int:
        """The number within the test of a collective with this number since the group's begin."""
        return number - self.before.get(group, 0) if number else 0

    def _waited(self, now: int, key: int, error: str | None) -> None:
        if (call := self.unawaited.pop(key, None)) is not None:
            state = CollectiveState.FAILED if error else CollectiveState.DONE
            self.collectives.append(replace(call, end=now, state=state, error=error or ""))

    def _record(self, record: int, group: str, number: int, *details: Any) -> None:
        operation, elements, dtype, begin, complete = details
        self.recorded[record] = Collective(
            operation=operation,
            group=group,
            number=self._in_test(group, number),
            begin=begin - self.began,
            end=self.until,
            state=CollectiveState.DONE if complete else CollectiveState.PENDING,
            elements=elements,
            dtype=dtype,
        )

    def events(self) -> Events:
        # ``until`` is from the controller's clock. The offset of another machine's clock is not
        # exact to the microsecond, so a phase may seem to begin after it.
        still_open = (replace(phase, end=max(phase.begin, phase.end)) for phase in self.open)
        phases = sorted([*self.phases, *still_open], key=lambda p: (p.begin, p.depth))
        issued = (_ended_with_phase(call, phases) for call in self.recorded.values())
        calls = [*self.collectives, *self.unawaited.values(), *issued]
        calls.sort(key=lambda call: (call.begin, call.number))
        return Events(tuple(phases), tuple(calls), self.truncated)


def _code_line(written: list[Any] | None) -> CodeLine | None:
    return None if written is None else CodeLine(*written)


def _ended_with_phase(call: Collective, phases: list[TracedPhase]) -> Collective:
    """End a complete collective of C++ with the innermost phase around its begin.

    gloo's records have no time of completion, but DDP waits for its gradients before backward
    returns, and for its broadcasts before the constructor returns.
    """
    if call.state is not CollectiveState.DONE:
        return call
    around = [phase for phase in phases if phase.begin <= call.begin <= phase.end]
    return replace(call, end=max(around, key=lambda p: p.depth).end) if around else call


class RankEnd(enum.StrEnum):
    """How a rank's part ended, in a word."""

    ENDED = "ended"
    FAILED = "failed"
    SKIPPED = "skipped"
    WAITS = "waits"
    """The rank waited in a collective that never completed, until the controller stopped it."""
    STOPPED = "stopped"
    DIED = "died"
    NOT_BEGUN = "not begun"


@dataclass(frozen=True, slots=True)
class FinalState:
    """The state of a rank at the end of the test."""

    at: int
    """Nanoseconds since the test began."""
    end: RankEnd
    words: str = ""
    """Details: the collective in which it waited, the cause of its death, its error message."""
    place: CodeLine | None = None
    """The line of code; None if unknown."""


@dataclass(frozen=True, slots=True)
class Track:
    """What the timeline has of one rank."""

    rank: int
    events: Events
    stand: FinalState
    machine: str = ""
    """``node 1 (beta)``; empty in a session on one machine."""
    uncertainty: int = 0
    """Nanoseconds by which all times of the rank may be off, as they are from another machine's
    clock."""
    is_lost: bool = False
    """Whether the rank's machine was lost, and with it the last of its events."""

    @property
    def name(self) -> str:
        return f"rank {self.rank}" + (f", {self.machine}" if self.machine else "")


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happened on all ranks in one test."""

    test: str
    failed: bool
    verdict: str
    """First line of the failure; empty if it passed or was skipped."""
    backend: str
    duration: int
    """The duration of the test in nanoseconds."""
    tracks: tuple[Track, ...]
    groups: dict[str, str]
    """Readable names of process groups, by torch's name."""

    def group(self, name: str) -> str:
        """The readable name of a process group."""
        return self.groups.get(name, group_words(name, ()) if name == "0" else f"group {name}")


def make_timeline(outcome: RunOutcome, reports: Sequence[pytest.TestReport]) -> Timeline:
    """Make the timeline of a test; ranks must have written their traces."""
    failed = [report for report in reports if report.failed]
    seen = outcome.hang or outcome.expiry
    rows = {} if seen is None else {row.rank: row for row in seen.table}
    ranks = sorted(outcome.ranks, key=lambda rank: rank.rank)
    began = round(outcome.began * 1e9)
    return Timeline(
        test=outcome.nodeid,
        failed=bool(failed),
        verdict=first_line(message_of(failed[0].longrepr)) if failed else "",
        backend=outcome.backend,
        duration=round(outcome.duration * 1e9),
        tracks=tuple(_track(rank, began, rows.get(rank.rank), outcome.oom) for rank in ranks),
        groups=_groups(ranks),
    )


def _track(rank: RankOutcome, began: int, row: RankLine | None, oom: str) -> Track:
    until = round(rank.at * 1e9)
    machine = rank.machine
    clock = None if machine is None else machine.clock
    events = parse(rank.trace, began if clock is None else began + clock.ahead, until)
    if rank.status is not None and rank.ending in (Ending.STOPPED, Ending.EXITED):
        events = _with_pending(events, rank.status)
    return Track(
        rank.rank,
        events,
        _final_state(rank, until, row, oom),
        "" if machine is None else machine.name,
        0 if clock is None else clock.uncertainty,
        machine is not None and machine.is_lost,
    )


def _with_pending(events: Events, status: RankStatus) -> Events:
    """Set the state of calls to PENDING that were not complete in the rank's last answer."""
    begun = {(wait.group, wait.number) for wait in status.begun}
    begun |= {(wait.group, 0) for wait in status.waits if wait.peer is not None}

    def corrected(call: Collective) -> Collective:
        waits = call.state is CollectiveState.UNAWAITED and (call.group, call.number) in begun
        return replace(call, state=CollectiveState.PENDING) if waits else call

    return replace(events, collectives=tuple(map(corrected, events.collectives)))


def _groups(ranks: Iterable[RankOutcome]) -> dict[str, str]:
    words = {}
    for rank in ranks:
        counts = rank.done.counts if rank.done is not None else ()
        for count in (*counts, *(rank.status.counts if rank.status is not None else ())):
            words[count.name] = count.words
    return words


# ------------------------------------------------------------------ the end of a rank


def _final_state(rank: RankOutcome, at: int, row: RankLine | None, oom: str) -> FinalState:
    if rank.ended_well:
        return _done(rank, at)
    if rank.ending is Ending.NOT_BEGUN:
        return FinalState(at, RankEnd.NOT_BEGUN, _lost_words(rank))
    trouble = RankFailure(rank, lost_phase(rank) or ReportPhase.TEARDOWN, None)
    if rank.ending is Ending.EXITED:
        reasons = "; ".join((_lost_words(rank), *explanations(rank, oom)))
        return FinalState(at, RankEnd.DIED, reasons, trouble.place)
    if row is not None and row.collective:
        return FinalState(at, RankEnd.WAITS, row.collective, row.place)
    status = rank.status
    if status is not None and status.blocked and status.waits:
        wait = status.waits[0]
        return FinalState(
            at, RankEnd.WAITS, wait_words(wait, detail=True), wait.site or status.place
        )
    return FinalState(at, RankEnd.STOPPED, _lost_words(rank), trouble.place)


def _done(rank: RankOutcome, at: int) -> FinalState:
    for phase, timed in rank.reports.items():
        trouble = RankFailure(rank, phase, timed.report)
        if timed.report.failed:
            return FinalState(at, RankEnd.FAILED, describe(trouble), _place(trouble))
        if timed.report.skipped and not hasattr(timed.report, "wasxfail"):
            return FinalState(at, RankEnd.SKIPPED, describe(trouble))
    return FinalState(at, RankEnd.ENDED)


def _place(trouble: RankFailure) -> CodeLine | None:
    frame = trouble.user_frame
    return None if frame is None else CodeLine(frame.file, frame.line)


def _lost_words(rank: RankOutcome) -> str:
    phase = lost_phase(rank)
    return "" if phase is None else describe(RankFailure(rank, phase, None))
