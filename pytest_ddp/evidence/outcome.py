"""What the supervisor saw of one test: frozen records, input of the merge.

Kept apart from the protocol because nothing of it crosses a process.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from pytest_ddp.wire.hosting import Clock
from pytest_ddp.wire.protocol import Done, Phase
from pytest_ddp.wire.survey import Standing


class Ending(enum.Enum):
    """How one rank's part in a test ended."""

    DONE = "done"
    """All phases reported, cleaned up, alive."""
    EXITED = "exited"
    """The process went away by itself: a signal or an exit code, 0 included."""
    ANNOUNCED = "ended as announced"
    """The process went away in the call, as the test had said that it would."""
    STOPPED = "stopped"
    """The controller stopped it: another rank had failed, or the timeout was over."""
    NOT_BEGUN = "not begun"
    """The item was not found, or the process group could not be built."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a rank is, in a session on several machines."""

    name: str
    """``node 1 (beta)``"""
    clock: Clock | None = None
    """How its clocks stand to the controller's; None where they are the same ones."""
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class TimedReport:
    """A rank's report and when it came, to tell the first failure from its echoes."""

    report: pytest.TestReport
    at: float
    """Seconds since the test began, on the controller's clock."""
    plain: bool = False
    """It says no more than that the phase has passed, and when."""


@dataclass(frozen=True, slots=True)
class RankOutcome:
    """All that is known of one rank after a test."""

    rank: int
    ending: Ending
    at: float
    """Seconds from the test's begin to the rank's ending, on the controller's clock."""
    reports: dict[Phase, TimedReport] = field(default_factory=dict)
    """The reports that came; a missing phase is a failure, whatever else is known."""
    subtests: tuple[TimedReport, ...] = ()
    """The reports of subtests, in the order in which they ended."""
    returncode: int | None = None
    """As in ``subprocess``, for a rank that exited."""
    stacks: str = ""
    """What faulthandler wrote: at a fatal signal, at ``exit``, or when asked to."""
    stdout: str = ""
    """Captured output that no report carried, because the rank did not live to send it."""
    stderr: str = ""
    native: str = ""
    """The C++ stacks that torch printed at a fatal signal, one for each thread."""
    children: str = ""
    """What faulthandler wrote in processes that the rank forked, as DataLoader workers."""
    phase: str = ""
    """What it was doing, after SIGKILL too: ``call: DDP construction``; empty if unknown."""
    began_at: str = ""
    """``file:line in function`` of the user's code that began it; empty if unknown."""
    seen_at: str = ""
    """Where a probe found the main thread doing it; empty if none did."""
    problem: str = ""
    """Why it could not begin (for NOT_BEGUN)."""
    done: Done | None = None
    standing: Standing | None = None
    """Its last answer to a probe."""
    trace: str = ""
    """What it wrote for ``--ddp-trace``; empty without it."""
    machine: Machine | None = None
    """None in a session on one."""
    setup_only: bool = False
    """No call was to follow its setup (``--setup-only``, ``--setup-plan``)."""

    @property
    def ended_well(self) -> bool:
        """True if it came to the end that its test had for it."""
        return self.ending in (Ending.DONE, Ending.ANNOUNCED)


@dataclass(frozen=True, slots=True)
class RankLine:
    """One row of the table that shows where the ranks of a hang stood."""

    rank: int
    state: str
    """"waits", "runs", "ended"; at a timeout also "suspended" and "silent"."""
    phase: str
    collective: str
    """"all_reduce #7 of the default group", or empty."""
    place: str
    """``file:line in function`` of the user's code, or empty."""
    group: str = ""
    """torch's name of the collective's process group."""
    number: int | None = None
    """The collective's number on its group in this test, from 1."""


@dataclass(frozen=True, slots=True)
class RootCause:
    """The ranks with which a failure began, or why that cannot be said."""

    ranks: tuple[int, ...]
    unknown: str = ""
    """The reason, where there are no ranks."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Proof that a test could never have ended."""

    sentence: str
    """The verdict: "deadlock: rank 0 waits in all_reduce #7 of the default group, ..."."""
    culprits: tuple[int, ...]
    """Ranks whose stand makes the wait hopeless."""
    table: tuple[RankLine, ...]
    root_cause: RootCause = RootCause((), "no collective was compared")


@dataclass(frozen=True, slots=True)
class Expiry:
    """Where the ranks stood when the test's time was over."""

    culprits: tuple[int, ...]
    """Ranks that were in no wait for a peer."""
    table: tuple[RankLine, ...]
    unknown: str = ""
    """Why there are no culprits."""
    remarks: dict[int, str] = field(default_factory=dict)
    """What a rank's state alone does not tell, as a predicate."""


class Way(NamedTuple):
    """What a send and its receive have in common."""

    group: str
    members: tuple[int, ...]
    """Global ranks, as are the next two."""
    sender: int
    """-1 for any, of a receive."""
    receiver: int
    tag: int


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Sends that no rank receives, or receives that no rank sends to."""

    way: Way
    count: int
    """How many; below zero of receives."""
    site: str
    """``file:line`` of the last one; empty if a fixture has begun it before the test."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """All that is known of one test after its run."""

    nodeid: str
    location: tuple[str, int | None, str]
    keywords: dict[str, int]
    backend: str
    ranks: tuple[RankOutcome, ...]
    start: float
    """Wall-clock time in seconds since the epoch."""
    duration: float
    check_collectives: bool = True
    """Whether unlike collectives of ranks that ended are a failure."""
    timeout: float | None = None
    """The deadline in seconds, if it was that which ended the test."""
    expiry: Expiry | None = None
    """Where the ranks stood then."""
    hang: Hang | None = None
    """The proof, if the controller stopped the ranks because they could never end."""
    mismatch: str = ""
    """What the collectives of ranks differ in although all of them ended, or nothing."""
    mismatch_cause: RootCause | None = None
    """Whose collectives those are; None if they were not compared."""
    suspicions: tuple[str, ...] = ()
    """What looks wrong without being a verdict: collectives that may be swapped."""
    unfinished: tuple[Unfinished, ...] = ()
    """What a test that passed has left between its ranks."""
    keeps_group: bool = False
    """The ranks' process groups are wider than the test."""
    oom: str = ""
    """What the kernel's out-of-memory killer did during the test, as the end of a sentence."""
    began: float = 0.0
    """When it began, in seconds on the monotonic clock."""
    notes: tuple[str, ...] = ()
    """Sentences for the failure text: a retried rendezvous, a rank's replacement."""
