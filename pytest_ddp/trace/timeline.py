"""The timeline of a test: the events of all ranks, and the final state of each."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pytest

from pytest_ddp.evidence.outcome import Ending, RankLine, RankOutcome, RunOutcome
from pytest_ddp.proof.prover import wait_words
from pytest_ddp.trace.events import Collective, Events, State, parse
from pytest_ddp.verdict.lost import explanations
from pytest_ddp.verdict.trouble import Trouble, first_line, lost_phase, message_of, what_happened
from pytest_ddp.wire.protocol import Phase as ReportPhase
from pytest_ddp.wire.survey import Standing, group_words


class End(enum.StrEnum):
    """How a rank's part ended, in a word."""

    ENDED = "ended"
    FAILED = "failed"
    SKIPPED = "skipped"
    WAITS = "waits"
    """In a collective that never completed, until the controller stopped it."""
    STOPPED = "stopped"
    DIED = "died"
    NOT_BEGUN = "not begun"


@dataclass(frozen=True, slots=True)
class Stand:
    """The state of a rank at the end of the test."""

    at: int
    """Nanoseconds since the test began."""
    end: End
    words: str = ""
    """Details: the collective in which it waited, the cause of its death, its error message."""
    place: str = ""
    """``file:line in function``; empty if unknown."""


@dataclass(frozen=True, slots=True)
class Track:
    """One rank."""

    rank: int
    events: Events
    stand: Stand
    machine: str = ""
    """``node 1 (beta)``; empty in a session on one machine."""
    uncertainty: int = 0
    """Nanoseconds by which all times of the rank may be off, as they are from another machine's
    clock."""
    is_lost: bool = False
    """Whether its machine was lost, and with it the last of its events."""

    @property
    def name(self) -> str:
        return f"rank {self.rank}" + (f", {self.machine}" if self.machine else "")


@dataclass(frozen=True, slots=True)
class Timeline:
    """One test."""

    test: str
    failed: bool
    verdict: str
    """First line of the failure; empty if it passed or was skipped."""
    backend: str
    duration: int
    """Nanoseconds."""
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
    if rank.standing is not None and rank.ending in (Ending.STOPPED, Ending.EXITED):
        events = _with_pending(events, rank.standing)
    return Track(
        rank.rank,
        events,
        _final_state(rank, until, row, oom),
        "" if machine is None else machine.name,
        0 if clock is None else clock.uncertainty,
        machine is not None and machine.is_lost,
    )


def _with_pending(events: Events, status: Standing) -> Events:
    """Set the state of calls to PENDING that were not complete in the rank's last answer."""
    begun = {(wait.group, wait.number) for wait in status.begun}
    begun |= {(wait.group, 0) for wait in status.waits if wait.peer is not None}

    def corrected(call: Collective) -> Collective:
        waits = call.state is State.UNAWAITED and (call.group, call.number) in begun
        return replace(call, state=State.PENDING) if waits else call

    return replace(events, collectives=tuple(map(corrected, events.collectives)))


def _groups(ranks: Iterable[RankOutcome]) -> dict[str, str]:
    words = {}
    for rank in ranks:
        counts = rank.done.counts if rank.done is not None else ()
        for count in (*counts, *(rank.standing.counts if rank.standing is not None else ())):
            words[count.name] = group_words(count.name, count.members)
    return words


# ------------------------------------------------------------------ the end of a rank


def _final_state(rank: RankOutcome, at: int, row: RankLine | None, oom: str) -> Stand:
    if rank.ended_well:
        return _done(rank, at)
    if rank.ending is Ending.NOT_BEGUN:
        return Stand(at, End.NOT_BEGUN, _lost_words(rank))
    trouble = Trouble(rank, lost_phase(rank) or ReportPhase.TEARDOWN, None)
    if rank.ending is Ending.EXITED:
        reasons = "; ".join((_lost_words(rank), *explanations(rank, oom)))
        return Stand(at, End.DIED, reasons, trouble.place)
    if row is not None and row.collective:
        return Stand(at, End.WAITS, row.collective, row.place)
    status = rank.standing
    if status is not None and status.blocked and status.waits:
        wait = status.waits[0]
        return Stand(at, End.WAITS, wait_words(wait, detail=True), wait.site or status.place)
    return Stand(at, End.STOPPED, _lost_words(rank), trouble.place)


def _done(rank: RankOutcome, at: int) -> Stand:
    for phase, timed in rank.reports.items():
        trouble = Trouble(rank, phase, timed.report)
        if timed.report.failed:
            return Stand(at, End.FAILED, what_happened(trouble), _place(trouble))
        if timed.report.skipped and not hasattr(timed.report, "wasxfail"):
            return Stand(at, End.SKIPPED, what_happened(trouble))
    return Stand(at, End.ENDED)


def _place(trouble: Trouble) -> str:
    frame = trouble.user_frame
    return "" if frame is None else f"{frame.file}:{frame.line}"


def _lost_words(rank: RankOutcome) -> str:
    phase = lost_phase(rank)
    return "" if phase is None else what_happened(Trouble(rank, phase, None))
